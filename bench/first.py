"""Start an engine in this process: `python bench/first.py ENGINE START THREADS PATH` prints its figures as JSON.

`bench.start` runs it as a script, so that the process imports little except the engine. `bench.sizes` loads networks by
the functions of the engines: they take the kind of start, the threads, the model or the saved file, and the output path
of "save". They return a function that runs a network on a feed and gives its outputs, and the shapes of its inputs.
"""

import json
import sys
import time

sys.path.pop(0)  # this folder, as its module `torch` is not the package

NAMES = {"cpuconv": "cpuconv", "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}
SIZES = (1, 64, 56, 56), (64, 64, 3, 3)  # shapes of the first convolution's input and weights


def cpuconv(start, threads, path, target=""):
    """Load a network in cpuconv, or make the operands of a convolution."""
    import cpuconv

    if start == "conv2d":
        x, w = map(array, SIZES)
        return lambda feed: [cpuconv.conv2d(x, w, padding=1, threads=threads)], {}
    model = (cpuconv.load if start == "saved" else cpuconv.compile)(path, threads=threads)
    if start == "save":
        model.save(target)
    return lambda feed: list(model.run(feed).values()), {port.name: port.shape for port in model.inputs}


def onnxruntime(start, threads, path, target=""):
    """Load a network in ONNX Runtime; the saved file is the model after its optimiser."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    if start == "save":
        options.optimized_model_filepath = target
    if start == "saved":
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda feed: session.run(None, feed), {port.name: port.shape for port in session.get_inputs()}


def openvino(start, threads, path, target=""):
    """Load a network in OpenVINO, for latency, in float32; the saved file is a compiled model."""
    import openvino

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
        with open(target, "wb") as saved:
            saved.write(compiled.export_model().getvalue())
    request, count = compiled.create_infer_request(), len(compiled.outputs)

    def run(feed):
        results = request.infer(feed, share_inputs=True, share_outputs=True)
        return [results[at] for at in range(count)]

    return run, {port.any_name: tuple(port.partial_shape) for port in compiled.inputs}


def array(shape):
    """Make an input array."""
    import numpy as np

    return np.full([int(str(size)) for size in shape], 0.5, np.float32)


def resident(field):
    """Return the resident bytes of this process: now (VmRSS) or peak (VmHWM); None on systems other than Linux."""
    try:
        with open("/proc/self/status") as file:
            return next(1024 * int(line.split()[1]) for line in file if line.startswith(field))
    except OSError:
        return None


def main(engine, start, threads, path, target=""):
    """Start the engine and print its figures: seconds by part and to the first result, modules, bytes, kernels.

    `path` is that of the model or the saved file; `target` is the output path of `save`.
    """
    modules = len(sys.modules)
    figures, ends = {}, [time.perf_counter()]

    def end(part):
        ends.append(time.perf_counter())
        figures[part] = ends[-1] - ends[-2]

    __import__(engine)
    end("import")
    imported = resident("VmRSS")
    if start != "import":
        run, shapes = globals()[engine](start, int(threads), path, target)
        end("ready")
    if start not in ("import", "save"):
        feed = {name: array(shape) for name, shape in shapes.items()}
        run(feed)
        end("run")
        run(feed)
        end("again")
    figures["all"] = sum(figures[part] for part in ("import", "ready", "run") if part in figures)
    figures["modules"] = len(sys.modules) - modules
    kept = resident("VmRSS")  # before the peak, because reading takes memory
    figures["imported"], figures["most"], figures["kept"] = imported, resident("VmHWM"), kept
    cache = sys.modules.get("cpuconv.runtime.code.cache")
    if cache:
        figures["compiled"] = cache.Statistics.compiled
    print(json.dumps(figures))


if __name__ == "__main__":
    sys.path.pop(0)  # this file's folder, whose module names could hide others
    main(*sys.argv[1:])
