// The part runs twice: without a graph in the forward pass, and with one of its own in the backward pass.
#include "tessera/torch/checkpoint.hpp"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "tessera/base/error.hpp"

namespace tessera::torch {

namespace {

using Part = std::function<at::Tensor(const at::Tensor&)>;

// `anchor` requires a gradient, so that there is a node even where the input needs none.
struct Rerun : ::torch::autograd::Function<Rerun> {
  static at::Tensor forward(::torch::autograd::AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& /*anchor*/, const at::Tensor& output, Part part) {
    context->save_for_backward({input});
    context->saved_data["part"] = c10::IValue::make_capsule(c10::make_intrusive<Kept>(std::move(part)));
    return output;
  }

  static ::torch::autograd::tensor_list backward(::torch::autograd::AutogradContext* context,
                                                 const ::torch::autograd::tensor_list& gradients) {
    const at::Tensor saved = context->get_saved_variables().front();
    const at::Tensor input = saved.detach().set_requires_grad(saved.requires_grad());
    const auto kept = c10::static_intrusive_pointer_cast<Kept>(context->saved_data["part"].toCapsule());
    at::Tensor output;
    {
      const at::AutoGradMode with_graph(true);
      output = kept->part(input);
    }
    ::torch::autograd::backward({output}, {gradients.front()});
    return {input.grad(), at::Tensor(), at::Tensor(), at::Tensor()};
  }

  struct Kept : ::torch::CustomClassHolder {
    explicit Kept(Part kept) : part(std::move(kept)) {}
    Part part;
  };
};

at::Tensor generator_state(at::Device device) { return at::globalContext().defaultGenerator(device).get_state(); }

}  // namespace

at::Tensor checkpoint(Part part, const at::Tensor& input) {
  if (!at::GradMode::is_enabled()) return part(input);
  at::Tensor output;
  {
    const at::NoGradGuard no_graph;
    const at::Tensor before = generator_state(input.device());
    output = part(input);
    if (!at::equal(before, generator_state(input.device()))) {
      throw UsageError("a checkpointed part drew random numbers, or another thread did meanwhile: it cannot run again");
    }
  }
  // Only now, so that the node is younger than the window that the part has opened.
  return Rerun::apply(input, at::zeros({}).set_requires_grad(true), output, std::move(part));
}

}  // namespace tessera::torch
