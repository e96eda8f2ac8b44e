// Optimizer updates, enqueued on the streams of any device. What begin_update decided is read when the task runs. On
// the CPU the threads of an operation share the elements.
#include "tessera/kernels/optimizer.hpp"

#include <fmt/format.h>

#include <array>

#include "kernels/adamw_rule.hpp"
#include "kernels/cuda/cuda_table.hpp"
#include "kernels/dispatch.hpp"
#include "kernels/step_arithmetic.hpp"
#include "tessera/base/error.hpp"

namespace tessera::kernels {
namespace {

AdamWArguments arguments_of(const AdamWSpans& spans, const AdamWSettings& settings, const StepScalars& scalars) {
  return {
      .master = spans.master,
      .first_moment = spans.first_moment,
      .second_moment = spans.second_moment,
      .gradient = spans.gradient.data,
      .gradient_format = format_of(spans.gradient.type),
      .count = spans.count,
      .rule = rule_of(settings, scalars),
      .rounded = spans.rounded.data,
      .rounded_format = format_of(spans.rounded.type),
  };
}

SgdArguments arguments_of(const SgdSpans& spans, const SgdSettings& settings, const StepScalars& scalars) {
  return {
      .master = spans.master,
      .velocity = spans.velocity,
      .gradient = spans.gradient.data,
      .gradient_format = format_of(spans.gradient.type),
      .count = spans.count,
      .gradient_factor = scalars.gradient_factor,
      .learning_rate = settings.learning_rate,
      .momentum = settings.momentum,
      .weight_decay = settings.weight_decay,
      .kept = kept_gradient(scalars, settings),
      .nesterov = settings.nesterov,
      .rounded = spans.rounded.data,
      .rounded_format = format_of(spans.rounded.type),
  };
}

RootScaledArguments arguments_of(const RootScaledSpans& spans, const RootScaledSettings& settings,
                                 const StepScalars& scalars) {
  return {
      .master = spans.master,
      .squares = spans.squares,
      .mean = spans.mean,
      .velocity = spans.velocity,
      .gradient = spans.gradient.data,
      .gradient_format = format_of(spans.gradient.type),
      .count = spans.count,
      .gradient_factor = scalars.gradient_factor,
      .learning_rate = rate_of(scalars, settings),
      .decay = settings.decay,
      .rest = rest_of(settings),
      .epsilon = settings.epsilon,
      .weight_decay = settings.weight_decay,
      .initial = settings.initial,
      .momentum = settings.momentum,
      .rounded = spans.rounded.data,
      .rounded_format = format_of(spans.rounded.type),
  };
}

void* from_element(void* rounded, std::size_t begin) {
  return rounded == nullptr ? nullptr : static_cast<std::uint16_t*>(rounded) + begin;
}
const void* from_element(const void* gradient, Format format, std::size_t begin) {
  return static_cast<const std::byte*>(gradient) + begin * (format == Format::fp32 ? 4 : 2);
}

void move_states(AdamWArguments& all, std::size_t begin) {
  all.first_moment += begin;
  all.second_moment += begin;
}
void move_states(SgdArguments& all, std::size_t begin) {
  if (all.velocity != nullptr) all.velocity += begin;
}
void move_states(RootScaledArguments& all, std::size_t begin) {
  all.squares += begin;
  if (all.mean != nullptr) all.mean += begin;
  if (all.velocity != nullptr) all.velocity += begin;
}

template <typename Arguments>
Arguments share_of(Arguments all, std::size_t begin, std::size_t end) {
  all.master += begin;
  move_states(all, begin);
  all.gradient = from_element(all.gradient, all.gradient_format, begin);
  all.rounded = from_element(all.rounded, begin);
  all.count = end - begin;
  return all;
}

template <typename Arguments>
void run_shared(void (*run)(const Arguments&), const Arguments& all) {
  parallel::in_shares(shares_of_elements(all.count),
                      [&](std::size_t begin, std::size_t end, std::size_t) { run(share_of(all, begin, end)); });
}

// One run after the other, unless the step is skipped.
template <typename Arguments, typename Spans, typename Settings>
void run_each(void (*run)(const Arguments&), const Spans& spans, std::span<const UpdateRun<Settings>> runs,
              float learning_rate, const StepScalars& scalars) {
  if (scalars.skip != 0) return;
  for (const UpdateRun<Settings>& each : runs) {
    Settings settings = each.settings;
    settings.learning_rate = learning_rate * settings.learning_rate;
    run_shared(run, share_of(arguments_of(spans, settings, scalars), each.first, each.first + each.count));
  }
}

void require_half(const Target& rounded) {
  if (rounded.data != nullptr && rounded.type == DType::fp32)
    throw UsageError("an update rounds its masters to bf16 or fp16, and was asked for fp32");
}

// The runs are a span, or a single one that the task keeps.
template <auto on_device, auto on_host, typename Spans, typename Runs>
void enqueue(Stream& stream, const Spans& spans, const Runs& runs, float learning_rate, const StepScalars* scalars) {
  require_half(spans.rounded);
  if (on_cuda(stream)) {
    return issue(stream, [=](void* native) { on_device(native, spans, runs, learning_rate, scalars); });
  }
  stream.submit([=, run = active_table().*on_host] {
    run_each(run, spans, std::span(runs.data(), runs.size()), learning_rate, *scalars);
  });
}

void require_velocity(const char* kernel, const float* velocity, float momentum, std::size_t count) {
  if (count == 0 || velocity != nullptr || momentum == 0.0f) return;
  throw UsageError(fmt::format("{} with momentum {} was given no velocity buffer", kernel, momentum));
}

// Once in many steps, so the compiler's own vectors are enough.
void run_outer_update(const OuterSpans& a, const OuterSettings& settings, std::size_t begin, std::size_t end) {
  const float rest = 1.0f - settings.learning_rate;
  const float pull = settings.learning_rate * settings.momentum;
  for (std::size_t i = begin; i < end; ++i) {
    const float d = a.anchor[i] - a.mean[i];
    const float momentum = settings.momentum * a.momentum_buffer[i] + d;
    const float master = (a.mean[i] + rest * d) - pull * momentum;
    a.momentum_buffer[i] = momentum;
    a.anchor[i] = master;
    a.master[i] = master;
  }
}

}  // namespace

void adamw(Stream& stream, AdamWSpans spans, AdamWSettings settings, const StepScalars* scalars) {
  const std::array<AdamWRun, 1> all{{{0, spans.count, settings}}};
  enqueue<cuda::adamw, &KernelTable::adamw>(stream, spans, all, 1.0f, scalars);
}

void adamw(Stream& stream, AdamWSpans spans, std::span<const AdamWRun> runs, float learning_rate,
           const StepScalars* scalars) {
  enqueue<cuda::adamw, &KernelTable::adamw>(stream, spans, runs, learning_rate, scalars);
}

void sgd(Stream& stream, SgdSpans spans, SgdSettings settings, const StepScalars* scalars) {
  require_velocity("sgd", spans.velocity, settings.momentum, spans.count);
  const std::array<SgdRun, 1> all{{{0, spans.count, settings}}};
  enqueue<cuda::sgd, &KernelTable::sgd>(stream, spans, all, 1.0f, scalars);
}

void sgd(Stream& stream, SgdSpans spans, std::span<const SgdRun> runs, float learning_rate,
         const StepScalars* scalars) {
  for (const SgdRun& run : runs) require_velocity("sgd", spans.velocity, run.settings.momentum, spans.count);
  enqueue<cuda::sgd, &KernelTable::sgd>(stream, spans, runs, learning_rate, scalars);
}

void root_scaled(Stream& stream, RootScaledSpans spans, RootScaledSettings settings, const StepScalars* scalars) {
  require_velocity("root_scaled", spans.velocity, settings.momentum, spans.count);
  const std::array<RootScaledRun, 1> all{{{0, spans.count, settings}}};
  enqueue<cuda::root_scaled, &KernelTable::root_scaled>(stream, spans, all, 1.0f, scalars);
}

void root_scaled(Stream& stream, RootScaledSpans spans, std::span<const RootScaledRun> runs, float learning_rate,
                 const StepScalars* scalars) {
  for (const RootScaledRun& run : runs)
    require_velocity("root_scaled", spans.velocity, run.settings.momentum, spans.count);
  enqueue<cuda::root_scaled, &KernelTable::root_scaled>(stream, spans, runs, learning_rate, scalars);
}

void outer_update(Stream& stream, OuterSpans spans, OuterSettings settings) {
  if (on_cuda(stream)) return issue(stream, [=](void* native) { cuda::outer_update(native, spans, settings); });
  stream.submit([=] {
    parallel::in_shares(shares_of_elements(spans.count), [&](std::size_t begin, std::size_t end, std::size_t) {
      run_outer_update(spans, settings, begin, end);
    });
  });
}

}  // namespace tessera::kernels
