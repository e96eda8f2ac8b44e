"""Why a step is not faster yet: what its parts, measured beside the comparison, would come to alone."""

CASES = {"single": "1", "threads": "1-threads", "ddp": "2-ddp", "fsdp": "2-fsdp"}


def figures_of(figures, case):
    prefix = f"step/{case}/"
    return {name.removeprefix(prefix): value for name, value in figures.items() if name.startswith(prefix)}


def alone_text(what, milliseconds, torch):
    return f"{what} {milliseconds:.3g} ms, {torch / milliseconds:.3g} times PyTorch's speed."


def step_limit(model, precision, parallel):
    """figures → one or two sentences."""
    def text(figures):
        parts = figures_of(figures, f"{model}/{precision}/{CASES[parallel]}")
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
