// The part runs twice: without a graph in the forward pass, and with one of its own in the backward pass.
#include "tessera/torch/checkpoint.hpp"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include "src/generator_mode.hpp"
#include "src/pass_token.hpp"
#include "src/torch_generators.hpp"
#include "tessera/base/error.hpp"

namespace tessera::torch {

namespace {

using Tensors = std::vector<at::Tensor>;

struct DrawnNumbers {
  GeneratorStates before;
  GeneratorStates after;
};

// Torch's generators go back to where they are now when it ends, also by an exception.
class GeneratorsKept {
 public:
  explicit GeneratorsKept(at::Device device) : now_(device) {}
  GeneratorsKept(const GeneratorsKept&) = delete;
  GeneratorsKept& operator=(const GeneratorsKept&) = delete;
  ~GeneratorsKept() { now_.restore(); }

 private:
  GeneratorStates now_;
};

struct CheckpointedPart {
  Tensors run_first(const Tensors& inputs) {
    const GeneratorStates before(device);
    const DrawCount count;
    Tensors outputs = part(inputs);
    draws = count.draws();
    const GeneratorStates after(device);
    if (!(before == after)) drawn = DrawnNumbers{before, after};
    return outputs;
  }

  // With the random numbers that it had first, from which the generators go back to where they are.
  Tensors run_again(const Tensors& inputs) const {
    std::optional<GeneratorMode> as_first;
    if (generator.defined()) as_first.emplace(generator);
    if (!drawn) return count_again(inputs);
    const GeneratorsKept kept(device);
    drawn->before.restore();
    Tensors outputs = count_again(inputs);
    const GeneratorStates reached(device);
    // A part that draws nothing stays where it began: others drew when it ran first.
    if (reached == drawn->after || (draws == 0 && reached == drawn->before)) return outputs;
    throw UsageError(
        "a checkpointed part did not draw the random numbers of its first run again: it does not do the same each "
        "time, or another thread drew meanwhile (ranks that are threads share torch's generators; let them be "
        "processes)");
  }

  // States alone do not tell a part that draws in one of the runs from others that drew during the first.
  Tensors count_again(const Tensors& inputs) const {
    const DrawCount count;
    Tensors outputs = part(inputs);
    if (count.draws() == draws) return outputs;
    throw UsageError(
        fmt::format("a checkpointed part did not draw the random numbers of its first run again: {} operators drew "
                    "then, and {} now; it must do the same each time",
                    draws, count.draws()));
  }

  std::function<Tensors(const Tensors&)> part;
  at::Device device;
  at::Generator generator = GeneratorMode::here();  // the thread's own that it draws from; undefined: torch's
  std::size_t draws = 0;                            // operators of the first run
  std::optional<DrawnNumbers> drawn = std::nullopt;
};

// `anchor` requires a gradient, so that there is a node even where no input needs one.
struct Rerun : ::torch::autograd::Function<Rerun> {
  static Tensors forward(::torch::autograd::AutogradContext* context, at::TensorList inputs,
                         const at::Tensor& /*anchor*/, at::TensorList outputs, CheckpointedPart part) {
    context->save_for_backward(inputs.vec());
    context->saved_data["outputs"] = static_cast<std::int64_t>(outputs.size());
    context->saved_data["part"] = c10::IValue::make_capsule(c10::make_intrusive<Kept>(std::move(part)));
    return outputs.vec();
  }

  static Tensors backward(::torch::autograd::AutogradContext* context, const Tensors& gradients) {
    Tensors inputs;
    for (const at::Tensor& saved : context->get_saved_variables()) {
      inputs.push_back(saved.defined() ? saved.detach().set_requires_grad(saved.requires_grad()) : saved);
    }
    const auto kept = c10::static_intrusive_pointer_cast<Kept>(context->saved_data["part"].toCapsule());
    Tensors outputs;
    {
      const at::AutoGradMode with_graph(true);
      outputs = kept->part.run_again(inputs);
    }
    Tensors roots;
    Tensors seeds;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].defined() || !outputs[i].requires_grad()) continue;
      roots.push_back(outputs[i]);
      seeds.push_back(gradients[i]);
    }
    ::torch::autograd::backward(roots, seeds);
    Tensors results;
    for (const at::Tensor& input : inputs) results.push_back(input.defined() ? input.grad() : input);
    const auto others = static_cast<std::size_t>(context->saved_data["outputs"].toInt()) + 2;  // of forward()
    results.resize(results.size() + others);
    return results;
  }

  struct Kept : ::torch::CustomClassHolder {
    explicit Kept(CheckpointedPart kept) : part(std::move(kept)) {}
    CheckpointedPart part;
    std::shared_ptr<const void> pass = pass_token();
  };
};

}  // namespace

Tensors checkpoint(std::function<Tensors(const Tensors&)> part, const Tensors& inputs) {
  if (!at::GradMode::is_enabled()) return part(inputs);
  CheckpointedPart kept{.part = std::move(part), .device = inputs.empty() ? at::kCPU : inputs.front().device()};
  Tensors outputs;
  {
    const at::NoGradGuard no_graph;
    outputs = kept.run_first(inputs);
  }
  // Only now, so that the node is younger than the window that the part has opened.
  return Rerun::apply(at::TensorList(inputs), at::zeros({}).set_requires_grad(true), at::TensorList(outputs),
                      std::move(kept));
}

at::Tensor checkpoint(std::function<at::Tensor(const at::Tensor&)> part, const at::Tensor& input) {
  const auto of_one = [part = std::move(part)](const Tensors& inputs) -> Tensors { return {part(inputs.front())}; };
  return checkpoint(of_one, Tensors{input}).front();
}

}  // namespace tessera::torch
