"""Models of the package transformers with small configurations and random weights, for `torch_models.py`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

Case = tuple[str, Callable[[], tuple[torch.nn.Module, tuple[Any, ...]]]]

VIT = {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 192}
FOUR = {**VIT, "num_hidden_layers": 4}
AT_112 = {**VIT, "image_size": 112}
STAGES = [f"stage{number}" for number in range(1, 5)]
FLAT = {"hidden_sizes": [16, 32, 64, 96], "depths": [1, 1, 1, 1]}
SWIN = {"embed_dim": 24, "depths": [1, 2], "num_heads": [2, 4]}
SOUND = {**VIT, "conv_dim": (16, 16, 32), "conv_stride": (5, 2, 2), "conv_kernel": (10, 3, 3)}
WIDTHS = {"decoder_layers": 2, "encoder_attention_heads": 3, "decoder_attention_heads": 3, "encoder_ffn_dim": 64}
DETR = {"encoder_layers": 1, **WIDTHS, "decoder_ffn_dim": 64, "num_queries": 20}
OWN_BACKBONE = {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None}


def image(size: int = 112, width: int = 0) -> torch.Tensor:
    return torch.randn(1, 3, size, width or size)


def tokens(count: int = 16) -> torch.Tensor:
    return torch.arange(count)[None]


def frames(count: int) -> torch.Tensor:
    return torch.randn(1, count, 3, 64, 64)


# name, model, configuration, its options, and inputs; options with a "Config" are configurations themselves
Row = tuple[str, str, str, dict[str, Any], tuple[Callable[[], Any], ...]]
RESNET = ("ResNetConfig", {**FLAT, "out_features": ["stage4"]})
SWIN_BACKBONE = (
    "SwinConfig", {"embed_dim": 24, "depths": [1] * 4, "num_heads": [1, 2, 4, 8], "out_features": STAGES}
)  # fmt: skip
DETECTOR = {**OWN_BACKBONE, "backbone_config": RESNET, **DETR, "d_model": 48}
MASKS = {
    "feature_size": 32, "mask_feature_size": 32, "hidden_dim": 32, "encoder_feedforward_dim": 64, "encoder_layers": 1,
    "decoder_layers": 3, "num_attention_heads": 2, "dim_feedforward": 64, "num_queries": 10,
}  # fmt: skip
DEPTH = {"fusion_hidden_size": 16, "neck_hidden_sizes": [16, 32, 48, 64]}
ROWS: list[Row] = [
    ("vit", "ViTModel", "ViTConfig", AT_112, (image,)),
    ("beit", "BeitModel", "BeitConfig", AT_112, (image,)),
    ("data2vec", "Data2VecVisionModel", "Data2VecVisionConfig", AT_112, (image,)),
    ("deit", "DeiTModel", "DeiTConfig", AT_112, (image,)),
    ("clip-vision", "CLIPVisionModel", "CLIPVisionConfig", {**AT_112, "patch_size": 16}, (image,)),
    ("clip-text", "CLIPTextModel", "CLIPTextConfig", {**VIT, "vocab_size": 1000}, (tokens,)),
    ("dinov2", "Dinov2Model", "Dinov2Config", {**AT_112, "patch_size": 14}, (image,)),
    ("dinov2-registers", "Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", {**AT_112, "patch_size": 14},
     (image,)),
    ("dinov3", "DINOv3ViTModel", "DINOv3ViTConfig", AT_112, (image,)),
    ("dinov3-convnext", "DINOv3ConvNextModel", "DINOv3ConvNextConfig", FLAT, (image,)),
    ("siglip", "SiglipVisionModel", "SiglipVisionConfig", {**AT_112, "patch_size": 16}, (image,)),
    ("vit-msn", "ViTMSNModel", "ViTMSNConfig", AT_112, (image,)),
    ("i-jepa", "IJepaModel", "IJepaConfig", AT_112, (image,)),
    ("aimv2", "Aimv2VisionModel", "Aimv2VisionConfig", AT_112, (image,)),
    ("blip-vision", "BlipVisionModel", "BlipVisionConfig", AT_112, (image,)),
    ("yolos", "YolosForObjectDetection", "YolosConfig", {**VIT, "image_size": [112, 112], "num_detection_tokens": 10},
     (image,)),
    ("swin", "SwinModel", "SwinConfig", SWIN, (lambda: image(224),)),
    ("swinv2", "Swinv2Model", "Swinv2Config", SWIN, (lambda: image(224),)),
    ("swin2sr", "Swin2SRForImageSuperResolution", "Swin2SRConfig", {**SWIN, "num_heads": [2, 2], "image_size": 64},
     (lambda: image(64),)),
    ("donut", "DonutSwinModel", "DonutSwinConfig", SWIN, (lambda: image(224),)),
    ("convnext", "ConvNextModel", "ConvNextConfig", FLAT, (image,)),
    ("convnextv2", "ConvNextV2Model", "ConvNextV2Config", FLAT, (image,)),
    ("focalnet", "FocalNetModel", "FocalNetConfig", {"embed_dim": 24, "depths": [1, 1, 2, 1]}, (lambda: image(224),)),
    ("levit", "LevitModel", "LevitConfig", {"depths": [1, 1, 1]}, (lambda: image(224),)),
    ("mobilevit", "MobileViTModel", "MobileViTConfig", {}, (lambda: image(128),)),
    ("mobilevitv2", "MobileViTV2Model", "MobileViTV2Config", {}, (lambda: image(128),)),
    ("mobilenetv2", "MobileNetV2ForSemanticSegmentation", "MobileNetV2Config", {"depth_multiplier": 0.35}, (image,)),
    ("poolformer", "PoolFormerModel", "PoolFormerConfig", FLAT, (image,)),
    ("pvt", "PvtModel", "PvtConfig", {"image_size": 128, "hidden_sizes": [16, 32, 40, 64], "depths": [1] * 4},
     (lambda: image(128),)),
    ("pvtv2", "PvtV2Model", "PvtV2Config", {"depths": [1] * 4}, (lambda: image(128),)),
    ("regnet", "RegNetModel", "RegNetConfig", {**FLAT, "groups_width": 8}, (image,)),
    ("swiftformer", "SwiftFormerModel", "SwiftFormerConfig", {"depths": [1] * 4}, (lambda: image(128),)),
    ("hiera", "HieraModel", "HieraConfig", {"image_size": [64, 64], "depths": [1] * 4, "embed_dim": 24},
     (lambda: image(64),)),
    ("textnet", "TextNetModel", "TextNetConfig", {}, (lambda: image(128),)),
    ("segformer", "SegformerForSemanticSegmentation", "SegformerConfig", {}, (image,)),
    ("upernet", "UperNetForSemanticSegmentation", "UperNetConfig",
     {"backbone_config": ("ResNetConfig", {**FLAT, "out_features": STAGES}), "hidden_size": 32, "num_labels": 5,
      "auxiliary_in_channels": 64, "auxiliary_channels": 16}, (lambda: image(128),)),
    ("depth-anything", "DepthAnythingForDepthEstimation", "DepthAnythingConfig",
     {"backbone_config": ("Dinov2Config", {**FOUR, "image_size": 112, "patch_size": 14, "out_features": STAGES[:3],
                                           "reshape_hidden_states": False}), "reassemble_hidden_size": 96,
      "neck_hidden_sizes": [16, 32, 64], "fusion_hidden_size": 32, "head_hidden_size": 16,
      "reassemble_factors": [2, 1, 0.5], "depth_estimation_type": "metric", "max_depth": 8}, (image,)),
    ("dpt", "DPTForDepthEstimation", "DPTConfig", {**FOUR, **DEPTH, "image_size": 112,
                                                   "backbone_out_indices": [0, 1, 2, 3]}, (image,)),
    ("glpn", "GLPNForDepthEstimation", "GLPNConfig", {"depths": [1] * 4}, (lambda: image(128),)),
    ("zoedepth", "ZoeDepthForDepthEstimation", "ZoeDepthConfig",
     {"backbone_config": ("BeitConfig", {**FOUR, "image_size": 128, "out_features": STAGES, "reshape_hidden_states":
                                         False, "use_relative_position_bias": True}), **DEPTH,
      "num_relative_features": 8, "bottleneck_features": 16}, (lambda: image(128),)),
    ("detr", "DetrForObjectDetection", "DetrConfig", DETECTOR, (lambda: image(128),)),
    ("table-transformer", "TableTransformerForObjectDetection", "TableTransformerConfig", DETECTOR,
     (lambda: image(128),)),
    ("conditional-detr", "ConditionalDetrForObjectDetection", "ConditionalDetrConfig", DETECTOR,
     (lambda: image(128),)),
    ("dab-detr", "DabDetrForObjectDetection", "DabDetrConfig", {**OWN_BACKBONE, "backbone_config": RESNET, **DETR,
                                                                "hidden_size": 48}, (lambda: image(128),)),
    ("maskformer", "MaskFormerForInstanceSegmentation", "MaskFormerConfig",
     {"fpn_feature_size": 32, "mask_feature_size": 32, "backbone_config": SWIN_BACKBONE,
      "decoder_config": ("DetrConfig", DETECTOR)}, (lambda: image(224),)),
    ("mask2former", "Mask2FormerForUniversalSegmentation", "Mask2FormerConfig",
     {"backbone_config": SWIN_BACKBONE, **MASKS}, (lambda: image(128),)),
    ("vitpose", "VitPoseForPoseEstimation", "VitPoseConfig",
     {"backbone_config": ("VitPoseBackboneConfig", {"hidden_size": 96, "num_hidden_layers": 2,
                                                    "num_attention_heads": 3, "out_indices": [2]}),
      "num_labels": 17}, (lambda: image(256, 192),)),
    ("vitdet", "VitDetModel", "VitDetConfig",
     {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 3, "image_size": 128, "window_size": 4,
      "window_block_indices": [0], "use_relative_position_embeddings": True}, (lambda: image(128),)),
    ("sam2", "Sam2VisionModel", "Sam2VisionConfig", {}, (lambda: image(256),)),
    ("efficient-loftr", "EfficientLoFTRModel", "EfficientLoFTRConfig", {}, (lambda: torch.rand(1, 2, 3, 64, 64),)),
    ("mgp-str", "MgpstrForSceneTextRecognition", "MgpstrConfig",
     {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 3, "num_bpe_labels": 100,
      "num_wordpiece_labels": 100}, (lambda: image(32, 128),)),
    ("videomae", "VideoMAEModel", "VideoMAEConfig", {**VIT, "image_size": 64, "num_frames": 4}, (lambda: frames(4),)),
    ("vivit", "VivitModel", "VivitConfig", {**VIT, "image_size": 64, "num_frames": 4, "tubelet_size": [2, 16, 16]},
     (lambda: frames(4),)),
    ("timesformer", "TimesformerModel", "TimesformerConfig", {**VIT, "image_size": 64, "num_frames": 2},
     (lambda: frames(2),)),
    ("v-jepa2", "VJEPA2Model", "VJEPA2Config",
     {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 3, "crop_size": 64, "frames_per_clip": 4,
      "pred_hidden_size": 48, "pred_num_attention_heads": 3, "pred_num_hidden_layers": 1}, (lambda: frames(4),)),
    ("whisper-encoder", "models.whisper.modeling_whisper.WhisperEncoder", "WhisperConfig",
     {"d_model": 96, "encoder_layers": 2, "encoder_attention_heads": 3, "encoder_ffn_dim": 192},
     (lambda: torch.randn(1, 80, 3000),)),
    ("wav2vec2", "Wav2Vec2Model", "Wav2Vec2Config", SOUND, (lambda: torch.randn(1, 8000),)),
    ("hubert", "HubertModel", "HubertConfig", SOUND, (lambda: torch.randn(1, 8000),)),
    ("audio-spectrogram", "ASTModel", "ASTConfig", {**VIT, "max_length": 128}, (lambda: torch.randn(1, 128, 128),)),
    ("bert", "BertModel", "BertConfig", {**VIT, "vocab_size": 500}, (tokens,)),
    ("t5-encoder", "T5EncoderModel", "T5Config",
     {"d_model": 96, "d_kv": 32, "num_heads": 3, "num_layers": 2, "d_ff": 128, "vocab_size": 500}, (tokens,)),
    ("gpt2", "GPT2Model", "GPT2Config", {"n_embd": 96, "n_layer": 2, "n_head": 3, "vocab_size": 500,
                                         "use_cache": False}, (tokens,)),
]  # fmt: skip


def cases() -> Iterator[Case]:
    """Name and maker of each model."""
    package = importlib.import_module("transformers")

    def config(kind: str, options: dict[str, Any]) -> Any:
        given = {name: config(*value) if isinstance(value, tuple) and isinstance(value[0], str) else value
                 for name, value in options.items()}  # fmt: skip
        return getattr(package, kind)(**given)

    for name, model, kind, options, inputs in ROWS:

        def make(row: tuple[str, str, dict[str, Any], Any] = (model, kind, options, inputs)) -> Any:
            model, kind, options, inputs = row
            module, _, cls = model.rpartition(".")
            place = importlib.import_module(f"transformers.{module}") if module else package
            return getattr(place, cls)(config(kind, options)), tuple(each() for each in inputs)

        yield name, make
