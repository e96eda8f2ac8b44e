"""The marks that the benchmarks are held against, and what is known of the limit where one is missed."""
import collections

# name: of the row. figure: of the benchmark's lines. over: figures of which the best (largest) is the ceiling; the ratio is
# figure / ceiling, or the figure itself. least or most: what the ratio is held against. limit: what is known of it where it
# is missed, a text or a function of the figures.
Mark = collections.namedtuple("Mark", "section name ratio least most limit", defaults=(None, None, ""))

KERNELS = "Kernels against memory"
COLLECTIVES = "Collectives against plain threads"
RUNTIME = "The runtime"
STEPS = "Steps against PyTorch"

BANDWIDTH_LIMIT = "All loops move more bytes than caches hold; a thread that shares its memory's bandwidth with others varies most."


def best(figures, *names):
    found = [figures[name] for name in names if name in figures]
    return max(found) if found else None


def over(figure, *ceilings):
    """The figure over the best of the ceilings."""
    def ratio(figures):
        ceiling = best(figures, *ceilings)
        return figures[figure] / ceiling if figure in figures and ceiling else None
    return ratio


def time_of(*ceilings, figure):
    """The least time of the ceilings over the figure's: a rate over the best rate."""
    def ratio(figures):
        found = [figures[name] for name in ceilings if name in figures]
        return min(found) / figures[figure] if figure in figures and found else None
    return ratio


def itself(figure, scale=1.0):
    return lambda figures: figures[figure] * scale if figure in figures else None


def kernel_marks():
    triads = ("kernels/triad", "kernels/triad-streaming")
    yield Mark(KERNELS, "AdamW", over("kernels/adamw", *triads), 0.9, None, BANDWIDTH_LIMIT)
    for to, of in (("bf16", "fp32"), ("fp32", "bf16"), ("fp16", "fp32"), ("fp32", "fp16")):
        yield Mark(KERNELS, f"cast {of} to {to}", over(f"kernels/cast-{of}-{to}", *triads), 0.9, None, BANDWIDTH_LIMIT)
    yield Mark(KERNELS, "norm", over("kernels/norm", "kernels/read"), 0.9, None, BANDWIDTH_LIMIT)


def collective_marks():
    for ranks in (2, 4):
        for collective in ("all-gather", "reduce-scatter"):
            for mebibytes in (16, 256):
                case = f"{ranks}/{collective}/{mebibytes}"
                ratio = time_of(f"collectives/plain/{case}", f"collectives/plain-streaming/{case}",
                                figure=f"collectives/local/{case}")
                yield Mark(COLLECTIVES, f"{collective}, {mebibytes} MiB, {ranks} ranks", ratio, 0.85, None,
                           "Ranks meet twice, by sleeping; plain threads meet once, and spin."
                           + (" Four ranks share two cores." if ranks == 4 else ""))


def runtime_marks():
    yield Mark(RUNTIME, "hideable communication hidden, 60 % communication", itself("overlap/60/hidden", 0.01), 0.95, None,
               "The modelled collective's own thread runs on the only core, too.")
    yield Mark(RUNTIME, "hideable communication hidden, 90 % communication", itself("overlap/90/hidden", 0.01), 0.95, None,
               "The modelled collective's own thread runs on the only core, too.")
    for units in (16, 64, 256, 1024):
        yield Mark(RUNTIME, f"host time, µs per unit and pass, {units} units",
                   itself(f"executor/{units}/host-time-per-unit-and-pass"), None, 5.0)
    yield Mark(RUNTIME, "MLP on one rank over its floor", itself("step/mlp/fp32/1/step-over-floor"), None, 1.2,
               "The products run at nearly the rate of a large one; dx reads the weights from memory in pieces, and the norm "
               "reads all gradients once more.")


# Names of figures: of steps beside PyTorch, and of steps in parts.
STEP_CASES = {"single": "1", "threads": "1-threads", "ddp": "2-ddp", "fsdp": "2-fsdp"}


def parts_of(figures, case):
    prefix = f"step/{case}/"
    return {name.removeprefix(prefix): value for name, value in figures.items() if name.startswith(prefix)}


def alone_text(what, milliseconds, torch):
    return f"{what} {milliseconds:.3g} ms, {torch / milliseconds:.3g} times PyTorch's speed."


def step_limit(model, precision, parallel):
    """figures → why a step is not faster yet: what its parts, measured beside the comparison, would come to alone."""
    def text(figures):
        parts = parts_of(figures, f"{model}/{precision}/{STEP_CASES[parallel]}")
        torch = figures.get(f"torch/{model}/{precision}/{parallel}/torch")
        if not parts or not torch:
            return "The step was not taken apart in this run."
        products = parts["linear"] + parts.get("attention", 0.0)
        found = [f"Products take {products:.3g} of the step's {parts['step']:.3g} ms, the linear ones at {parts['linear-rate']:.3g} "
                 f"GFLOP/s, and the optimizer {parts['optimizer']:.3g}.",
                 alone_text("These alone would be", products + parts["optimizer"], torch)]
        if parallel in ("ddp", "fsdp"):
            found.append(alone_text("Without communication it would be", parts["without-communication"], torch)
                         + f" {parts['exposed-communication']:.3g} ms of it show: each rank has one core, for its products and for "
                         "the threads that gather and reduce.")
        return " ".join(found)
    return text


def step_marks():
    least = {"mlp": {"single": 1.3, "threads": 1.3, "ddp": 2.0, "fsdp": 2.5},
             "gpt": {"single": 1.3, "threads": 1.3, "ddp": 1.5, "fsdp": 2.0},
             "cnn": {"single": 1.0, "threads": 1.0, "ddp": 1.2, "fsdp": 2.0},
             "resnet18": {"single": 1.0, "threads": 1.0, "ddp": 1.2, "fsdp": 2.0}}
    peers = {"single": "one rank", "threads": "one rank of two threads", "ddp": "DDP, two ranks", "fsdp": "FSDP2, two ranks"}
    for model in least:
        for precision in ("fp32", "bf16"):
            for parallel, mark in least[model].items():
                yield Mark(STEPS, f"{model.upper()}, {precision}, {peers[parallel]}",
                           itself(f"torch/{model}/{precision}/{parallel}/ratio"), mark, None,
                           step_limit(model, precision, parallel))


def marks():
    return [*kernel_marks(), *collective_marks(), *runtime_marks(), *step_marks()]
