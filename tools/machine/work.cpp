// A backward pass has two products for each of the forward pass: the input's gradient and the weights'. Where it is in
// two windows, each has one of them, and attention, which has no weights, is in the first.
#include "machine/work.hpp"

#include <algorithm>
#include <string_view>

#include "tessera/base/error.hpp"

namespace tools {

namespace plan = tessera::plan;
using plan::WindowKind;

double Work::flops() const {
  double sum = 0;
  for (const Product& product : products) sum += product.flops * product.count;
  return sum;
}

namespace {

bool ends_with_any(std::string_view name, std::initializer_list<std::string_view> ends) {
  for (const std::string_view end : ends) {
    if (name.ends_with(end)) return true;
  }
  return false;
}

// Rows of it are looked up, and nothing is multiplied.
bool is_table(const plan::UnitSpec& unit, const plan::ParameterSpec& parameter) {
  return ends_with_any(parameter.name, {"wpe.weight", "wte.weight"}) ||
         (unit.name == "embedding" && parameter.name == "embedding.weight");
}

bool is_attention(std::string_view name) { return ends_with_any(name, {"attn.c_proj.weight", "attention.wo.weight"}); }

// Queries by keys, and probabilities by values: the half of each that a causal mask leaves.
double attention_flops(double dim, TokenShape shape) {
  return 2 * static_cast<double>(shape.rows) * static_cast<double>(shape.seq) * dim;
}

// Where a unit's backward pass is in two, what is called backward is the second.
bool is_in_two(const plan::Plan& plan, std::size_t unit) {
  const std::vector<plan::WindowUse>& uses = plan.programs.front().micro_batch;
  return std::any_of(uses.begin(), uses.end(), [&](const plan::WindowUse& use) {
    return use.unit == unit && use.kind == WindowKind::backward_input;
  });
}

double attention_passes(WindowKind kind, bool in_two) {
  if (kind == WindowKind::backward) return in_two ? 0 : 2;
  return kind == WindowKind::backward_input ? 2 : 1;
}

Work work_of_shapes(const plan::Plan& plan, const WindowKey& window, TokenShape shape) {
  const auto [index, kind, nth] = window;
  const plan::UnitSpec& unit = plan.units[index];
  const auto rows = static_cast<double>(shape.rows);
  const bool in_two = is_in_two(plan, index);
  const double passes = kind == WindowKind::backward && !in_two ? 2 : 1;
  // The windows of GPT's embedding backward are in the other order. Of stages the last one has the head, tied to the
  // first one's table.
  const bool is_head = plan.options.role ? unit.tied : kind == WindowKind::backward ? nth == 0 : nth == 1;
  const double element = static_cast<double>(size_of(plan.precision(index).parameter).count());
  Work work;
  double bytes = 0;
  for (const plan::ParameterSpec& parameter : unit.parameters) {
    if (parameter.shape.size() < 2) continue;
    const auto out = static_cast<double>(parameter.shape[0]);
    const double in = static_cast<double>(tessera::element_count(parameter.shape)) / out;
    const bool tied_head = is_head && parameter.name.ends_with("wte.weight");
    if (is_table(unit, parameter) && !tied_head) {
      bytes += passes * 2 * rows * in * element;
      continue;
    }
    work.products.push_back({2 * rows * out * in, passes});
    const double attends = is_attention(parameter.name) ? attention_passes(kind, in_two) : 0;
    if (attends > 0) work.products.push_back({attention_flops(in, shape), attends});
    // Inputs and outputs of a product are read and written once more by what stands between products: norms,
    // activations, residuals.
    bytes += passes * 2 * rows * (in + out) * element;
  }
  if (bytes > 0) work.passes.push_back(bytes);
  return work;
}

ConvolutionClass class_of(const tessera::nn::CountedConvolution& of) {
  if (of.kernel == 1) return ConvolutionClass::pointwise;
  return of.channels < narrow_channels ? ConvolutionClass::narrow : ConvolutionClass::wide;
}

}  // namespace

// The rates of products include what they read and write.
Work work_of(const tessera::nn::CountedWork& counted) {
  Work work;
  for (const tessera::nn::CountedOperation& each : counted.operations()) {
    if (each.products == 0) {
      if (each.bytes > 0) work.passes.push_back(each.bytes);
      continue;
    }
    Product product{.flops = each.flops, .count = each.products, .backward = each.backward};
    if (each.convolution) product.convolution = class_of(*each.convolution);
    work.products.push_back(product);
  }
  return work;
}

Work work_of(const plan::Plan& plan, const WindowKey& window, const Workload& load) {
  if (load.counted.empty()) return work_of_shapes(plan, window, load.shape);
  const auto found = load.counted.find(window);
  if (found == load.counted.end()) throw tessera::InternalError("a window that the model's own pass does not have");
  return found->second;
}

double model_flops(const plan::Plan& plan, const Workload& load) {
  std::map<std::pair<std::size_t, WindowKind>, std::size_t> seen;
  double flops = 0;
  for (const plan::WindowUse& use : plan.programs.front().micro_batch) {
    if (use.resumes) continue;
    const std::size_t nth = seen[{use.unit, use.kind}]++;
    if (use.kind != WindowKind::recompute) flops += work_of(plan, {use.unit, use.kind, nth}, load).flops();
  }
  return flops;
}

}  // namespace tools
