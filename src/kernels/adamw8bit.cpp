// The update with 8-bit moments, enqueued on the streams of any device. On the CPU the threads of an operation share
// whole blocks.
#include "tessera/kernels/adamw8bit.hpp"

#include <fmt/format.h>

#include "kernels/adamw_rule.hpp"
#include "kernels/cuda/cuda_table.hpp"
#include "kernels/dispatch.hpp"
#include "kernels/dynamic_map.hpp"
#include "tessera/base/error.hpp"

namespace tessera::kernels {
namespace {

constexpr DynamicMap signed_map = dynamic_map::make(true);
constexpr DynamicMap unsigned_map = dynamic_map::make(false);

std::byte* bytes_from(const void* data, DType type, std::size_t begin) {
  return static_cast<std::byte*>(const_cast<void*>(data)) + (size_of(type) * begin).count();
}

// Elements [begin, end) of the spans.
AdamW8bitArguments arguments_of(const AdamW8bitSpans& spans, std::size_t begin, std::size_t end) {
  const std::size_t block = begin / moment_block;
  return {.master = spans.master + begin,
          .first_codes = spans.first.codes + begin,
          .first_scales = spans.first.scales + block,
          .second_codes = spans.second.codes + begin,
          .second_scales = spans.second.scales + block,
          .gradient = bytes_from(spans.gradient.data, spans.gradient.type, begin),
          .gradient_format = format_of(spans.gradient.type),
          .count = end - begin,
          .rounded = spans.rounded.data == nullptr ? nullptr : bytes_from(spans.rounded.data, DType::bf16, begin),
          .rounded_format = format_of(spans.rounded.type)};
}

using Kernel = void (*)(const AdamW8bitArguments&, const AdamWRule&, const DynamicMap&, const DynamicMap&);

void run_on_cpu(Kernel kernel, const AdamW8bitSpans& spans, std::span<const AdamWRun> runs, float learning_rate,
                const StepScalars& scalars) {
  if (scalars.skip != 0) return;
  for (const AdamWRun& run : runs) {
    AdamWRule rule = rule_of(run.settings, scalars);
    rule.learning_rate = learning_rate * rule.learning_rate;
    parallel::Shares shares = shares_of_elements(run.count);
    shares.unit = moment_block;
    parallel::in_shares(shares, [&](std::size_t begin, std::size_t end, std::size_t) {
      kernel(arguments_of(spans, run.first + begin, run.first + end), rule, signed_map, unsigned_map);
    });
  }
}

void require_valid(const AdamW8bitSpans& spans, std::span<const AdamWRun> runs) {
  if (spans.rounded.data != nullptr && spans.rounded.type != DType::bf16 && spans.rounded.type != DType::fp16)
    throw UsageError("an update rounds its masters to bf16 or fp16, and was asked for another type");
  for (const AdamWRun& run : runs) {
    if (run.first % moment_block == 0) continue;
    throw UsageError(
        fmt::format("adamw8bit: a run begins with element {}, inside a block of {}", run.first, moment_block));
  }
}

}  // namespace

void adamw8bit(Stream& stream, AdamW8bitSpans spans, AdamWSettings settings, const StepScalars* scalars) {
  const AdamWRun all{0, spans.count, settings};
  require_valid(spans, {&all, 1});
  if (on_cuda(stream)) {
    return issue(stream, [=](void* native) { cuda::adamw8bit(native, spans, {&all, 1}, 1.0f, scalars); });
  }
  stream.submit([=, run = active_table().adamw8bit] { run_on_cpu(run, spans, std::span(&all, 1), 1.0f, *scalars); });
}

void adamw8bit(Stream& stream, AdamW8bitSpans spans, std::span<const AdamWRun> runs, float learning_rate,
               const StepScalars* scalars) {
  require_valid(spans, runs);
  if (on_cuda(stream)) {
    return issue(stream, [=](void* native) { cuda::adamw8bit(native, spans, runs, learning_rate, scalars); });
  }
  stream.submit([=, run = active_table().adamw8bit] { run_on_cpu(run, spans, runs, learning_rate, *scalars); });
}

std::span<const float, 256> signed_dynamic_map() { return signed_map.value; }
std::span<const float, 256> unsigned_dynamic_map() { return unsigned_map.value; }

std::uint8_t signed_code(float x) {
  return static_cast<std::uint8_t>(borders_below(signed_map.border, x) + signed_map.first_code);
}
std::uint8_t unsigned_code(float x) {
  return static_cast<std::uint8_t>(borders_below(unsigned_map.border, x) + unsigned_map.first_code);
}

}  // namespace tessera::kernels
