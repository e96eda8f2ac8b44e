// "pipeline=2,shard=4", strictly.
#include "tessera/trainer/mesh_option.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::trainer {

namespace {

using Extent = tessera::plan::MeshShape::Extent;

constexpr std::size_t most_ranks_of_axis = std::size_t{1} << 20;

std::vector<std::string_view> names_of(tessera::AxisSet axes) {
  std::vector<std::string_view> names;
  for (std::size_t index = 0; index < tessera::axis_count; ++index) {
    if (const auto axis = static_cast<tessera::Axis>(index); axes.contains(axis)) names.push_back(to_string(axis));
  }
  return names;
}

Extent extent_of(std::string_view text, tessera::AxisSet axes) {
  const std::size_t equals = std::min(text.find('='), text.size());
  const std::string_view name = text.substr(0, equals);
  for (std::size_t index = 0; index < tessera::axis_count; ++index) {
    const auto axis = static_cast<tessera::Axis>(index);
    if (!axes.contains(axis) || to_string(axis) != name || equals == text.size()) continue;
    return {axis, whole_number(fmt::format("--mesh: {}", name), text.substr(equals + 1), {1, most_ranks_of_axis})};
  }
  throw OptionError(
      fmt::format("--mesh: \"{}\" is no axis with its ranks; they are given as {}=2, say, and there are {}", text,
                  to_string(tessera::Axis::shard), fmt::join(names_of(axes), ", ")));
}

tessera::plan::MeshShape mesh_of(const std::string& text, tessera::AxisSet axes) {
  std::vector<Extent> extents;
  tessera::AxisSet named;
  for (const std::string& part : split(text)) {
    extents.push_back(extent_of(part, axes));
    if (named.contains(extents.back().axis)) {
      throw OptionError(fmt::format("--mesh: {} is given twice", to_string(extents.back().axis)));
    }
    named = named | extents.back().axis;
  }
  return tessera::plan::MeshShape(extents);
}

}  // namespace

void add_strategy_option(CommandLine& line, tessera::Strategy& strategy) {
  std::vector<std::pair<std::string, tessera::Strategy>> strategies;
  for (const tessera::Strategy& each : tessera::all_strategies) strategies.emplace_back(each.name, each);
  line.choice("--strategy", strategy, strategies,
              "What each rank keeps whole: all (ddp), parameters and sums of micro-batches (zero1), parameters "
              "(zero2), or nothing; each replica keeps the model once (hsdp), or all of it but the optimizer's states, "
              "which all ranks share (hfsdp) [fsdp]");
}

void add_mesh_option(CommandLine& line, std::optional<tessera::plan::MeshShape>& mesh, tessera::AxisSet axes) {
  line.take({"--mesh", "AXIS=N,...",
             fmt::format("Ranks along named axes, the outermost first, as in shard=4 ({}); ranks of one host follow "
                         "each other, so let the axis that moves most be the last [all along shard]",
                         fmt::join(names_of(axes), ", "))},
            [&mesh, axes](const std::string& text) { mesh = mesh_of(text, axes); });
}

void add_schedule_options(CommandLine& line, ScheduleOptions& options, const char* micro_batches) {
  using enum tessera::plan::ScheduleKind;
  line.choice<tessera::plan::ScheduleKind>(
      "--schedule", options.kind,
      {{"gpipe", gpipe}, {"1f1b", one_f_one_b}, {"interleaved", interleaved}, {"zb-h1", zb_h1}},
      fmt::format("How the {} micro-batches flow through the stages of --mesh pipeline=N,…; zb-h1 of layers that are "
                  "computed once [1f1b]",
                  micro_batches));
  line.whole("--chunks", options.chunks, {1, 1024},
             fmt::format("Parts of the model on each stage, with --schedule interleaved [{}]", options.chunks));
}

void check_schedule(const CommandLine& line, const ScheduleOptions& options, const ScheduledLayers& of,
                    const char* micro_batches) {
  const bool is_interleaved = options.kind == tessera::plan::ScheduleKind::interleaved;
  if (of.stages == 1) {
    for (const char* name : {"--schedule", "--chunks"}) {
      if (line.given(name)) throw OptionError(fmt::format("{} needs --mesh with several places along pipeline", name));
    }
  } else if (options.chunks > 1 && !is_interleaved) {
    throw OptionError("--chunks needs --schedule interleaved");
  } else if (is_interleaved && of.micro_batches % of.stages != 0) {
    throw OptionError(fmt::format("--schedule interleaved needs {} to be a multiple of the {} stages, not {}",
                                  micro_batches, of.stages, of.micro_batches));
  } else if (of.stages * options.chunks > of.layers) {
    throw OptionError(
        fmt::format("--mesh: {} stages of {} chunk{} need as many layers, and there are {}: take fewer stages or "
                    "chunks, or a model of more layers",
                    of.stages, options.chunks, options.chunks == 1 ? "" : "s", of.layers));
  } else if (options.kind == tessera::plan::ScheduleKind::zb_h1 && of.recompute) {
    throw OptionError(
        "--schedule zb-h1 keeps what --activation-checkpointing would compute again: leave it out, or choose 1f1b");
  }
}

}  // namespace tessera::trainer
