"""Compare PyTorch models of public packages, read by `cpuconv.from_torch`, with eager execution.

    python tests/torch_models.py [--only NAME,...] [--group torchvision,...] [--read] [--backend] [--resume FILE]

Prints one line per model: largest error relative to the largest output, seconds to export and read, and to compile and
run. Where the error is over the bound, the line also has that of eager execution with inputs changed by 1e-6: boxes of
equal scores may change places. `--read` only reads; `--backend` uses `torch.compile(backend="cpuconv")`, and prints
the number of compiled parts. `--resume` adds the lines to a file, and skips models that it has. Weights are random;
images are small. Models of packages that are not installed are skipped.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch_detectors
import transformers_cases
from torch.utils import _pytree as pytree

from support.torch_backend import compiled_parts, register

BOUND = 2e-4  # error relative to the largest element of an output
Case = tuple[str, Callable[[], tuple[torch.nn.Module, tuple[Any, ...]]]]

_TIMM = """
resnet18 resnext26ts seresnet18 resnest14d regnetx_002 regnety_002 regnetv_040 efficientnet_b0 tf_efficientnetv2_b0
mobilenetv2_050 mobilenetv3_small_050 mobilenetv4_conv_small mnasnet_small fbnetc_100 hardcorenas_a tinynet_e
lcnet_035 ghostnet_100 ghostnetv2_100 densenet121 dla34 dpn48b vgg11 cspresnet50 darknet17 hrnet_w18_small
inception_v3 inception_v4 inception_resnet_v2 xception41 nasnetalarge pnasnet5large selecsls42 vovnet39a repvgg_a0
nfnet_l0 convnext_atto convnextv2_atto convmixer_768_32 resmlp_12_224 mixer_s32_224 gmixer_12_224
vit_tiny_patch16_224 deit_tiny_patch16_224 deit3_small_patch16_224 beit_base_patch16_224 cait_xxs24_224
xcit_nano_12_p16_224 swin_tiny_patch4_window7_224 swinv2_tiny_window8_256 swin_s3_tiny_224 pit_ti_224 levit_128s
coat_tiny crossvit_tiny_240 twins_pcpvt_small pvt_v2_b0 poolformer_s12 edgenext_xx_small mobilevit_xxs
mobilevitv2_050 efficientformer_l1 efficientformerv2_s0 fastvit_t8 mobileone_s0 repvit_m0_9 maxvit_pico_rw_256
coatnet_nano_rw_224 visformer_tiny volo_d1_224 focalnet_tiny_srf davit_tiny gcvit_xxtiny hiera_tiny_224
tiny_vit_5m_224 inception_next_tiny rdnet_tiny starnet_s1 hgnetv2_b0 eva02_tiny_patch14_224 botnet26t_256 halonet26t
lambda_resnet26t sequencer2d_s nest_tiny tnt_s_patch16_224 convit_tiny rexnet_100 res2net50_14w_8s sknet18 gernet_s
ese_vovnet19b_dw tresnet_m haloregnetz_b eca_nfnet_l0 skresnet18 naflexvit_base_patch16_gap swiftformer_xs shvit_s1
efficientvit_b0 efficientvit_m0 mambaout_femto"""
TIMM = _TIMM.split()
_ULTRALYTICS = """yolov8n yolo11n yolo12n yolo26n yolov8n-seg yolov8n-pose yolo11n-cls yolo11n-obb"""
ULTRALYTICS = _ULTRALYTICS.split()


def _torchvision() -> Iterator[Case]:
    models = importlib.import_module("torchvision.models")
    for name in models.list_models(module=models):
        size = 64 if name.startswith(("resnet", "wide", "resnext", "mobile", "shuffle", "mnas", "regnet")) else 224
        if "_h_14" in name or "_l_" in name or "128gf" in name or name in ("efficientnet_b7", "efficientnet_v2_l"):
            continue  # more of the same layers
        size = 299 if name == "inception_v3" else size
        yield (
            name,
            lambda name=name, size=size: (models.get_model(name, weights=None), (torch.randn(1, 3, size, size),)),
        )
    for name in models.list_models(module=models.segmentation):
        made = {"weights_backbone": None}
        yield (
            f"segmentation.{name}",
            lambda name=name, made=made: (models.get_model(name, weights=None, **made), (torch.randn(1, 3, 97, 128),)),
        )
    for name in models.list_models(module=models.video):
        yield (
            f"video.{name}",
            lambda name=name: (
                models.get_model(name, weights=None),
                (torch.randn(1, 3, 16, 224, 224) if "mvit" in name or "s3d" in name else torch.randn(1, 3, 8, 64, 64),),
            ),
        )
    yield from torch_detectors.cases(models)


def _timm() -> Iterator[Case]:
    timm = importlib.import_module("timm")
    known = {*timm.list_models()}
    for name in filter(known.__contains__, TIMM):

        def make(name: str = name) -> tuple[torch.nn.Module, tuple[Any, ...]]:
            model = timm.create_model(name, pretrained=False)
            size = (getattr(model, "pretrained_cfg", None) or {}).get("input_size", (3, 224, 224))[-1]
            return model, (torch.randn(1, 3, size, size),)

        yield name, make


def _ultralytics() -> Iterator[Case]:
    tasks = importlib.import_module("ultralytics.nn.tasks")
    kinds = {"seg": "SegmentationModel", "pose": "PoseModel", "cls": "ClassificationModel", "obb": "OBBModel"}
    for name in ULTRALYTICS:
        kind = getattr(tasks, kinds.get(name.partition("-")[2], "DetectionModel"))
        yield name, lambda name=name, kind=kind: (kind(f"{name}.yaml", verbose=False), (torch.rand(1, 3, 160, 160),))


GROUPS = {
    "torchvision": _torchvision,
    "timm": _timm,
    "ultralytics": _ultralytics,
    "transformers": transformers_cases.cases,
}


def error_of(results: Any, expected: Any) -> float:
    """Largest difference relative to the largest element, over all tensors of a result."""
    pairs = zip(_tensors(results), _tensors(expected), strict=True)
    return max((_error(np.asarray(a, np.float64), np.asarray(b, np.float64)) for a, b in pairs), default=0.0)


def _tensors(result: Any) -> list[Any]:
    if hasattr(result, "to_tuple"):
        result = result.to_tuple()
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, (torch.Tensor, np.ndarray))]


def _error(a: np.ndarray, b: np.ndarray) -> float:
    if a.shape != b.shape:
        return float("inf")
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return float("inf")
    return float(np.abs(a[finite] - b[finite]).max(initial=0) / max(np.abs(b[finite]).max(initial=0), 1e-30))


def _run(make: Callable[[], Any], options: argparse.Namespace) -> str:
    torch.manual_seed(0)
    module, args = make()
    module.eval()
    with torch.no_grad():
        torch_detectors.fill_zeros(module)
        begin = time.perf_counter()
        if options.backend:
            return _run_backend(module, args)
        expected = module(*args)
        from cpuconv.reading.aten.exported import read_module

        graph = read_module(module, args)
        read = time.perf_counter()
        if options.read:
            return f"{len(graph.nodes):5} nodes {read - begin:7.1f} s"
        import cpuconv

        model = cpuconv.compile(graph)
        leaves = [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor)]
        feed = {port.name: leaf.numpy() for port, leaf in zip(model.inputs, leaves, strict=True)}
        error = error_of([*model.run(feed).values()], expected)
        text = f"{error:9.1e} {read - begin:7.1f} s {time.perf_counter() - read:7.1f} s"
        return text if error < BOUND else f"{text}  WRONG, eager {_sensitivity(module, args, expected):.1e}"


def _run_backend(module: torch.nn.Module, args: Any) -> str:
    """Compare a module behind `torch.compile` with eager execution; detection models stage by stage."""
    torch._dynamo.reset()  # else the ninth model of one class would run eagerly
    begin = time.perf_counter()
    with compiled_parts() as parts, torch_detectors.recorded(module) as found:
        results = torch.compile(module, backend="cpuconv")(*args)
    seconds = time.perf_counter() - begin
    with torch_detectors.continued(module, found, error_of) as errors:
        expected = module(*args)
    errors.append(error_of(results, expected))
    text = f"{max(errors):9.1e} {seconds:7.1f} s {len(parts):3} parts"
    if len(errors) > 1:
        text += f", stages {' '.join(f'{each:.0e}' for each in errors)}, {len(results[0]['scores'])} boxes"
    if not parts or len(found) != len(errors) - 1:
        return f"{text}  WRONG, all stays eager"
    return text if max(errors) < BOUND else f"{text}  WRONG, eager {_sensitivity(module, args, expected):.1e}"


def _attempt(make: Callable[[], Any], options: argparse.Namespace) -> str:
    """Run a model; a failure is part of the report."""
    try:
        return _run(make, options)
    except Exception as error:
        if options.only:
            traceback.print_exc()
        return f"FAILED {type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _sensitivity(module: torch.nn.Module, args: Any, expected: Any) -> float:
    """Error of eager execution with floating-point inputs that are changed by 1e-6."""

    def changed(leaf: Any) -> Any:
        floats = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        return leaf * (1 + 1e-6 * torch.randn_like(leaf)) if floats else leaf

    return error_of(module(*pytree.tree_map(changed, args)), expected)


def main() -> int:
    """Run the models, and return the number of those that failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="")
    parser.add_argument("--group", default=",".join(GROUPS))
    parser.add_argument("--part", default="1/1", help="k/n: every n-th model, from the k-th on")
    parser.add_argument("--read", action="store_true")
    parser.add_argument("--backend", action="store_true")
    parser.add_argument("--resume", type=Path, help="file with the lines of earlier runs")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable()
    if options.backend:
        register()
    lines: dict[tuple[str, ...], str] = {}
    if options.resume and options.resume.exists():
        lines = {tuple(line.split()[:2]): line for line in options.resume.read_text().splitlines()}
    failed, counted = 0, 0
    at, of = map(int, options.part.split("/"))
    for group in options.group.split(","):
        try:
            cases = [*GROUPS[group]()]
        except ImportError as error:
            print(f"{group}: skipped, {error}")
            continue
        only = {*filter(None, options.only.split(","))}
        for name, make in [case for case in cases if not only or case[0] in only][at - 1 :: of]:
            line = lines.get((group, name)) or f"{group:12} {name:36} {_attempt(make, options)}"
            counted += 1
            failed += "FAILED" in line or "WRONG" in line
            print(line, flush=True)
            if options.resume and (group, name) not in lines:
                with options.resume.open("a") as file:
                    file.write(f"{line}\n")
    print(f"{counted - failed} of {counted} models are right")
    return failed


if __name__ == "__main__":
    sys.exit(main())
