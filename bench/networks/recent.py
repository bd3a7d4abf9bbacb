"""Networks that run on CPUs in 2026: YOLO, DETRs, vision transformers, text, depth, restoration, speech and music.

Modules of timm, torchvision, ultralytics and transformers have random weights; networks of the packages rapidocr and
silero-vad are trained.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import numpy_helper

from bench.networks import Network
from bench.networks.packaged import path
from bench.networks.torch_export import Pick, export

if TYPE_CHECKING:
    import torch

SET = "2026"
IMAGE = (1, 3, 224, 224)
_TORCH = {"onnx": "onnx", "torch": "torch"}
_OCR = {"onnx": "onnx", "rapidocr": "--no-deps rapidocr==3.10.0"}
_VAD = {"onnx": "onnx", "silero_vad": "--no-deps silero-vad==6.2.3"}


def timm(name: str, **options: Any) -> torch.nn.Module:
    """Build a module of the package timm, with its parallel branches merged where they can be."""
    from timm import create_model
    from timm.utils.model import reparameterize_model

    return reparameterize_model(create_model(name, pretrained=False, **options))


def torchvision(name: str, **options: Any) -> torch.nn.Module:
    """Build a module of the package torchvision."""
    from bench.networks.vision import torchvision

    return torchvision().models.get_model(name, weights=None, **options)


def ultralytics(name: str, kind: str = "YOLO") -> torch.nn.Module:
    """Build a detector from the description in the package ultralytics, with the outputs of its ONNX export."""
    import ultralytics

    module = getattr(ultralytics, kind)(f"{name}.yaml").model
    head = module.model[-1]
    head.export, head.format, head.dynamic = True, "onnx", False
    return module.requires_grad_(False)


def transformers(config: str, model: str, part: str = "", **options: Any) -> torch.nn.Module:
    """Build a module of the package transformers from a configuration; `part` names one of its submodules."""
    import transformers

    made = getattr(transformers, model)(getattr(transformers, config)(**options))
    return made.get_submodule(part) if part else made


def rf_detr(**options: Any) -> torch.nn.Module:
    """Build RF-DETR of the package transformers for the image size of its position embeddings.

    Their resizing has no ONNX operator in this opset, and changes nothing at this size.
    """
    made = transformers("RfDetrConfig", "RfDetrForObjectDetection", **options)
    embeddings = next(each for each in made.modules() if hasattr(each, "interpolate_pos_encoding"))
    embeddings.interpolate_pos_encoding = lambda *_: embeddings.position_embeddings
    return made


def written(name: str) -> torch.nn.Module:
    """Build a module of `bench.networks.modules`."""
    return getattr(importlib.import_module("bench.networks.modules"), name)()


def _named(*names: str) -> Pick:
    """Return a function that takes outputs of transformers by name."""
    return lambda found: tuple(getattr(found, name) for name in names)


def _first(found: Any) -> Any:
    return found[0]


def _ocr(file: str, inputs: Any) -> onnx.ModelProto:
    return onnx.load(path("rapidocr", f"models/{file}.onnx"))


def _voice_activity(inputs: Any) -> onnx.ModelProto:
    """Load silero-vad for 16 kHz; the rate becomes a constant."""
    model = onnx.load(path("silero_vad", "data/silero_vad_16k_op15.onnx"))
    rate = next(entry for entry in model.graph.input if entry.name == "sr")
    model.graph.input.remove(rate)
    model.graph.initializer.append(numpy_helper.from_array(np.array(16000, np.int64), "sr"))
    return model


def _row(
    name: str, build: Callable[[], torch.nn.Module], shape: tuple[int, ...] = IMAGE, needs: str = "",
    pick: Pick | None = None, unordered: bool = False,
) -> Network:  # fmt: skip
    make = functools.partial(export, build, pick=pick)
    wanted = _TORCH | ({needs: needs} if needs else {})
    return Network(name, {"x": shape}, make, wanted, set=SET, fixed=True, unordered=unordered)


def _of(function: Callable[..., torch.nn.Module], *arguments: Any, **options: Any) -> dict[str, Any]:
    """Return the fields of a row whose module one of the functions above builds."""
    package = function.__name__
    needs = "" if function is written else package
    return {"build": functools.partial(function, *arguments, **options), "needs": needs}


_RF_BACKBONE = {
    "model_type": "rf_detr_dinov2", "hidden_size": 384, "num_attention_heads": 6, "patch_size": 16, "num_windows": 2,
    "image_size": 384, "out_indices": [3, 6, 9, 12],
}  # fmt: skip
NETWORKS = (
    *(
        _row(name, **_of(ultralytics, name.replace("_", "-"), "YOLO"), shape=(1, 3, 640, 640))
        for name in ("yolov8n", "yolo11n", "yolo12n", "yolo26n", "yolo26n_seg")
    ),
    _row("rtdetr_l", **_of(ultralytics, "rtdetr-l", "RTDETR"), shape=(1, 3, 512, 512), unordered=True),
    _row("d_fine_l", **_of(transformers, "DFineConfig", "DFineForObjectDetection"), shape=(1, 3, 640, 640),
         pick=_named("logits", "pred_boxes"), unordered=True),
    _row("rf_detr_nano", functools.partial(rf_detr, decoder_layers=2, backbone_config=_RF_BACKBONE),
         shape=(1, 3, 384, 384), needs="transformers", pick=_named("logits", "pred_boxes"), unordered=True),
    Network("ppocrv6_det", {"x": (1, 3, 640, 640)}, functools.partial(_ocr, "PP-OCRv6_det_small"), _OCR, reads=True,
            set=SET),
    Network("ppocrv6_rec", {"x": (1, 3, 48, 320)}, functools.partial(_ocr, "PP-OCRv6_rec_small"), _OCR, reads=True,
            set=SET),
    *(
        _row(name, **_of(timm, of, **options), shape=(1, 3, side, side))
        for name, of, side, options in (
            ("clip_vit_b32", "vit_base_patch32_clip_quickgelu_224", 224, {}),
            ("siglip_b16", "vit_base_patch16_siglip_224", 224, {}),
            ("vit_small", "vit_small_patch16_224", 224, {}),
            ("dinov2_small", "vit_small_patch14_dinov2", 224, {"img_size": 224}),
            ("swin_tiny", "swin_tiny_patch4_window7_224", 224, {}),
            ("swinv2_tiny", "swinv2_tiny_window8_256", 256, {}),
            ("maxvit_tiny", "maxvit_tiny_tf_224", 224, {}),
            ("levit_256", "levit_256", 224, {}),
            ("sam_vit_b", "samvit_base_patch16_224", 224, {}),
            ("mobile_sam", "tiny_vit_5m_224", 512, {}),
            ("mobilenetv4", "mobilenetv4_conv_medium", 224, {}),
            ("convnextv2_tiny", "convnextv2_tiny", 224, {}),
            ("fastvit_sa12", "fastvit_sa12", 256, {}),
            ("repvit_m1_0", "repvit_m1_0", 224, {}),
        )
    ),
    _row("efficientnet_v2_s", **_of(torchvision, "efficientnet_v2_s")),
    _row("deeplabv3_mobilenet", **_of(torchvision, "deeplabv3_mobilenet_v3_large", weights_backbone=None),
         shape=(1, 3, 320, 320), pick=lambda found: found["out"]),
    _row("segformer_b0", **_of(transformers, "SegformerConfig", "SegformerForSemanticSegmentation"),
         shape=(1, 3, 256, 256), pick=_named("logits")),
    _row("depth_anything_small", **_of(transformers, "DepthAnythingConfig", "DepthAnythingForDepthEstimation"),
         shape=(1, 3, 252, 252), pick=_named("predicted_depth")),
    _row("u2net_p", **_of(written, "U2Net"), shape=(1, 3, 320, 320)),
    _row("unet_3d", **_of(written, "VolumeUNet"), shape=(1, 1, 64, 64, 64)),
    _row("real_esrgan", **_of(written, "CompactSuperResolution"), shape=(1, 3, 128, 128)),
    _row("esrgan", **_of(written, "DenseSuperResolution"), shape=(1, 3, 96, 96)),
    _row("swin2sr", **_of(transformers, "Swin2SRConfig", "Swin2SRForImageSuperResolution", depths=[6, 6, 6, 6],
                          embed_dim=60, num_heads=[6, 6, 6, 6], upscale=2, upsampler="pixelshuffledirect"),
         shape=(1, 3, 64, 64), pick=_named("reconstruction")),
    _row("nafnet", **_of(written, "NAFNet"), shape=(1, 3, 256, 256)),
    _row("arcface", **_of(written, "ArcFace"), shape=(1, 3, 112, 112)),
    _row("whisper_tiny", **_of(transformers, "WhisperConfig", "WhisperModel", "encoder", d_model=384,
                               encoder_layers=4, encoder_attention_heads=6, encoder_ffn_dim=1536, num_mel_bins=80),
         shape=(1, 80, 3000), pick=_first),
    _row("parakeet", **_of(transformers, "ParakeetEncoderConfig", "ParakeetEncoder", hidden_size=512,
                           num_attention_heads=8, num_hidden_layers=6, intermediate_size=2048),
         shape=(1, 500, 80), pick=_first),
    Network("silero_vad", {"input": (1, 576), "state": (2, 1, 128)}, _voice_activity, _VAD, set=SET,
            fixed=True),
    _row("vocoder", **_of(written, "Vocoder"), shape=(1, 80, 128)),
    _row("separator", **_of(written, "Separator"), shape=(1, 2, 131072)),
)  # fmt: skip
