"""Start an engine in this process: `python bench/first.py ENGINE START THREADS PATH` prints its figures as JSON.

`bench.start` runs it as a script, so that the process imports little except the engine.
"""

import json
import sys
import time

BEGUN = time.perf_counter()
FOLDER = sys.path.pop(0)  # this file's folder, whose module names could hide others
SIZES = (1, 64, 56, 56), (64, 64, 3, 3)  # shapes of the first convolution's input and weights


def cpuconv(start, threads, path, target):
    """Start cpuconv; only this engine has the starts of single convolutions."""
    import cpuconv

    yield "import"
    if start == "conv2d":
        import numpy as np

        x, w = (np.full(size, 0.5, np.float32) for size in SIZES)
        yield "ready"
        cpuconv.conv2d(x, w, padding=1, threads=threads)
        yield "run"
    elif start != "import":
        model = (cpuconv.load if start == "saved" else cpuconv.compile)(path, threads=threads)
        if start == "save":
            return model.save(target)
        yield "ready"
        feed = {port.name: array(port.shape) for port in model.inputs}
        model.run(feed)
        yield "run"


def onnxruntime(start, threads, path, target):
    """Start ONNX Runtime; the saved file is the model after its optimiser."""
    import onnxruntime

    yield "import"
    if start == "import":
        return
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    if start == "save":
        options.optimized_model_filepath = target
    if start == "saved":
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    yield "ready"
    session.run(None, {port.name: array(port.shape) for port in session.get_inputs()})
    yield "run"


def openvino(start, threads, path, target):
    """Start OpenVINO; the saved file is a compiled model."""
    import openvino

    yield "import"
    if start == "import":
        return
    core = openvino.Core()
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": "f32",
    }
    if start == "saved":
        with open(path, "rb") as file:
            compiled = core.import_model(file.read(), "CPU", settings)
    else:
        compiled = core.compile_model(core.read_model(path), "CPU", settings)
    if start == "save":
        with open(target, "wb") as file:
            file.write(compiled.export_model().getvalue())
        return
    yield "ready"
    request = compiled.create_infer_request()
    request.infer({port.any_name: array(port.shape) for port in compiled.inputs})
    yield "run"


def array(shape):
    """Make an input array."""
    import numpy as np

    return np.full(tuple(shape), 0.5, np.float32)


def resident(field):
    """Return the resident bytes of this process: now (VmRSS) or peak (VmHWM); None on systems other than Linux."""
    try:
        with open("/proc/self/status") as file:
            return next(1024 * int(line.split()[1]) for line in file if line.startswith(field))
    except OSError:
        return None


def main(engine, start, threads, path, target=""):
    """Start the engine and print its figures: seconds by part and in total, modules, bytes, compiled kernels.

    `path` is that of the model or the saved file; `target` is the output path of `save`.
    """
    modules = len(sys.modules)
    figures = {}
    last = time.perf_counter()
    for part in globals()[engine](start, int(threads), path, target):
        now = time.perf_counter()
        figures[part], last = now - last, now
    figures["all"] = sum(figures.values())
    figures["modules"] = len(sys.modules) - modules
    kept = resident("VmRSS")  # before the peak, because reading takes memory
    figures["most"], figures["kept"] = resident("VmHWM"), kept
    cache = sys.modules.get("cpuconv.runtime.code.cache")
    if cache:
        figures["compiled"] = cache.Statistics.compiled
    print(json.dumps(figures))


if __name__ == "__main__":
    main(*sys.argv[1:])
