// A checkpoint is held against what the model wants, as a whole, before the first byte is replaced.
#include "checkpoint/load.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "base/hash.hpp"
#include "checkpoint/checkpoint_directory.hpp"
#include "checkpoint/differences.hpp"
#include "checkpoint/file_layout.hpp"
#include "checkpoint/safetensors_header.hpp"
#include "comm/introduction.hpp"
#include "tessera/base/error.hpp"
#include "tessera/checkpoint/checkpoint_reader.hpp"
#include "tessera/device/stream.hpp"
#include "tessera/kernels/elementwise.hpp"

namespace tessera::checkpoint {

namespace {

TensorKind kind_of(const TensorSource& source) {
  switch (source.kind) {
    case TensorSource::Kind::master:
    case TensorSource::Kind::anchor: return TensorKind::model;
    case TensorSource::Kind::state:
    case TensorSource::Kind::masters_apart:
    case TensorSource::Kind::outer_momentum: return TensorKind::optimizer;
    case TensorSource::Kind::buffer: return TensorKind::buffers;
  }
  throw InternalError("a tensor of no kind");
}

// Masters of one type set out from masters of the other.
bool converts(const LaidTensor& wanted, const CheckpointTensor& stored) {
  return wanted.source.kind == TensorSource::Kind::master && stored.dtype != stored_name(wanted.spec.dtype) &&
         (stored.dtype == stored_name(DType::fp32) || stored.dtype == stored_name(DType::bf16));
}

// Why a stored tensor cannot be the model's; empty when it can.
std::string difference(const LaidTensor& wanted, const CheckpointTensor* stored) {
  const std::string what = fmt::format("{} tensor {}", to_string(kind_of(wanted.source)), shown_name(wanted.spec.name));
  if (stored == nullptr) return fmt::format("{} {} is missing", what, to_string(wanted.spec.shape));
  if (stored->shape != wanted.spec.shape) {
    return fmt::format("{} is {}, the model's is {}", what, to_string(stored->shape), to_string(wanted.spec.shape));
  }
  if (stored->dtype != stored_name(wanted.spec.dtype) && !converts(wanted, *stored)) {
    return fmt::format("{} is {}, expected {}", what, stored->dtype, stored_name(wanted.spec.dtype));
  }
  return {};
}

// Names what the optimizers of a checkpoint and of the model keep, where that differs; the tensors' differences alone
// would say so in thousands.
std::string difference_of_optimizers(const CheckpointReader& reader, const Plans& plans) {
  if (plans.front()->diverges() || !reader.state().replicas.empty()) return {};
  std::set<std::string> stored, wanted, described;
  for (const CheckpointTensor& tensor : reader.tensors(TensorKind::optimizer)) {
    stored.insert(tensor.name.substr(0, tensor.name.find('/')));
  }
  for (const plan::Plan* plan : plans) {
    for (std::size_t unit = 0; unit < plan->units.size(); ++unit) {
      if (!plan->trains(unit)) continue;
      for (const plan::StateSpec& state : plan->unit_states(unit)) {
        wanted.insert(state.name);
        described.insert(plan::describe(state));
      }
    }
  }
  if (stored.empty() || stored == wanted) return {};
  return fmt::format(
      "; its optimizer keeps the states {}, and the model's keeps {}: load it with the optimizer that it "
      "was saved with, or its weights alone",
      fmt::join(stored, ", "), fmt::join(described, ", "));
}

struct Match {
  const LaidTensor* wanted;
  const CheckpointTensor* stored;
};

// The tensors that both have. Throws a DataError with all that differs, unless part of them is enough.
std::vector<Match> matches(const CheckpointReader& reader, const std::vector<LaidTensor>& tensors,
                           const LoadInput& input) {
  std::vector<Match> result;
  Differences differences;
  std::set<const CheckpointTensor*> known;
  for (const LaidTensor& wanted : tensors) {
    const CheckpointTensor* stored = reader.find(kind_of(wanted.source), wanted.spec.name);
    const std::string text = difference(wanted, stored);
    if (text.empty()) result.push_back({&wanted, stored});
    if (!text.empty()) differences.add(text);
    known.insert(stored);
  }
  for (const TensorKind kind : tensor_kinds) {
    for (const CheckpointTensor& stored : reader.tensors(kind)) {
      if (known.contains(&stored)) continue;
      differences.add(fmt::format("{} tensor {} is not in the model", to_string(kind), shown_name(stored.name)));
    }
  }
  if (differences.empty() || input.partial) return result;
  throw DataError(fmt::format("{}: does not fit the model: {}{}", reader.folder().string(), differences.text(),
                              difference_of_optimizers(reader, input.plans)));
}

// Returns for each program false where it keeps states, and none of them was found.
std::vector<bool> programs_with_states(const std::vector<LaidTensor>& tensors, std::span<const Match> matches,
                                       const Plans& plans) {
  std::vector<bool> result(plans.front()->programs.size(), true);
  const auto set = [&](const LaidTensor& tensor, bool value) {
    if (tensor.source.kind != TensorSource::Kind::state) return;
    result[plan_of(plans, tensor.source).trainers[tensor.source.unit]] = value;
  };
  for (const LaidTensor& wanted : tensors) set(wanted, false);
  for (const Match& match : matches) set(*match.wanted, true);
  return result;
}

// Those of this rank's role.
std::vector<std::vector<bool>> states_found(const std::vector<LaidTensor>& tensors, std::span<const Match> matches,
                                            const plan::Plan& plan) {
  std::vector<std::vector<std::size_t>> missing;
  for (const plan::UnitSpec& unit : plan.units) missing.emplace_back(unit.parameters.size());
  const auto is_state = [&](const TensorSource& source) {
    return source.kind == TensorSource::Kind::state && source.role == plan.options.role.value_or(0);
  };
  for (const LaidTensor& wanted : tensors) {
    if (is_state(wanted.source)) ++missing[wanted.source.unit][wanted.source.place];
  }
  for (const Match& match : matches) {
    if (is_state(match.wanted->source)) --missing[match.wanted->source.unit][match.wanted->source.place];
  }
  std::vector<std::vector<bool>> found;
  for (const std::vector<std::size_t>& unit : missing) {
    auto& of_unit = found.emplace_back();
    for (const std::size_t count : unit) of_unit.push_back(count == 0);
  }
  return found;
}

// In passes: a stored tensor that several of the model's parameters are to have, as those that were tied when it was
// saved, is read in as many. Other roles' tensors have no values here.
std::vector<std::vector<TensorRange>> my_ranges(const std::vector<Match>& matches, const LoadInput& input) {
  std::vector<std::vector<TensorRange>> passes;
  std::map<const CheckpointTensor*, std::size_t> uses;
  for (const Match& match : matches) {
    if (input.values.share(match.wanted->source).bytes.empty() || converts(*match.wanted, *match.stored)) continue;
    const std::size_t pass = uses[match.stored]++;
    if (pass == passes.size()) passes.emplace_back();
    input.values.for_each_part(input.plan, match.wanted->source, match.wanted->size_of(1),
                               [&](std::size_t first, std::span<std::byte> bytes) {
                                 passes[pass].push_back({match.stored, Bytes(match.wanted->size_of(first)), bytes});
                               });
  }
  return passes;
}

// Masters that the checkpoint has in another type, in portions: fp32 ones are rounded to nearest, bf16 ones widened.
void read_converted(const CheckpointReader& reader, const std::vector<Match>& matches, const LoadInput& input,
                    const Pause& pause) {
  constexpr std::size_t portion = std::size_t{1} << 20;
  Stream host(Device::cpu(), {.name = "converted masters", .mode = StreamMode::immediate});
  std::vector<std::byte> values;
  for (const Match& match : matches) {
    if (!converts(*match.wanted, *match.stored)) continue;
    const DType to = match.wanted->spec.dtype, from = to == DType::fp32 ? DType::bf16 : DType::fp32;
    const auto read = [&](std::size_t first, std::span<std::byte> bytes) {
      const std::size_t elements = bytes.size() / size_of(to).count();
      for (std::size_t begin = 0; begin < elements; begin += portion) {
        const std::size_t count = std::min(portion, elements - begin);
        values.resize((size_of(from) * count).count());
        reader.read(*match.stored, size_of(from) * (first + begin), values, input.block);
        kernels::cast(host, {bytes.data() + (size_of(to) * begin).count(), to}, {values.data(), from}, count);
        pause();
      }
    };
    input.values.for_each_part(input.plan, match.wanted->source, size_of(to).count(), read);
  }
}

std::optional<FoundCheckpoint> look_for_latest(const LatestInput& input) {
  if (!input.options.skip_damaged) return newest_below(input.directory, input.options.below);
  std::vector<FoundCheckpoint> found = list_checkpoints(input.directory);
  std::erase_if(found, [&](const FoundCheckpoint& each) { return each.step >= input.options.below; });
  const bool none = found.empty();
  for (; !found.empty(); found.pop_back()) {
    if (found.back().valid()) return found.back();
    input.world.warn(fmt::format("{}: is skipped: {}", found.back().path.string(), found.back().fault));
  }
  if (none) return std::nullopt;
  throw DataError(fmt::format("{}: none of its checkpoints can be used; to begin anew, choose another directory",
                              input.directory.string()));
}

// Whether the checkpoint's replicas are the model's: each then gets its own values back. Replicas of the model also set
// out together, from a checkpoint of none; but nobody can say which of so many replicas goes on in so many others, so
// that leaves what they had in common, to who asks for a part.
bool goes_on_apart(const LoadInput& input, const CheckpointReader& reader) {
  const std::size_t wanted = input.plan.diverges() ? input.plan.mesh.size(input.plan.diverging()) : 0;
  const std::size_t stored = reader.state().replicas.size();
  if (stored == wanted) return wanted > 0;
  if (stored == 0 || input.partial) return false;
  throw DataError(fmt::format(
      "{}: was written between outer steps of {} replicas, each with weights and states of its own, and the model has "
      "{}: load it with as many, or go on from what they had in common last, the weights alone, in its {}.safetensors",
      reader.folder().string(), stored,
      wanted == 0 ? "no outer steps" : fmt::format("outer steps of {} replicas", wanted),
      to_string(TensorKind::model)));
}

// Each program goes on with its own counts. Who asks for a part takes those of the programs that both have.
void require_programs(const LoadInput& input, const CheckpointReader& reader) {
  if (input.partial) return;
  std::vector<std::string> wanted;
  if (input.plan.programs.size() > 1) {
    for (const plan::Program& program : input.plan.programs) wanted.push_back(program.name);
  }
  std::vector<std::string> stored;
  for (const ProgramCounts& counts : reader.state().programs) stored.push_back(counts.program);
  if (std::is_permutation(stored.begin(), stored.end(), wanted.begin(), wanted.end())) return;
  const auto text = [](const std::vector<std::string>& names) {
    return names.empty() ? "one program" : fmt::format("the programs {}", fmt::join(names, ", "));
  };
  throw DataError(fmt::format("{}: was written by a model of {}, and this one has {}: load a part of it",
                              reader.folder().string(), text(stored), text(wanted)));
}

}  // namespace

Loaded load(const LoadInput& input) {
  std::optional<CheckpointReader> reader;
  std::vector<LaidTensor> tensors;
  std::vector<Match> found;
  bool apart = false;
  input.channel.together("checkpoint: open", [&](const Pause&) {
    reader.emplace(input.path, input.block);
    apart = goes_on_apart(input, *reader);
    require_programs(input, *reader);
    tensors = tensors_of(input.plans, apart);
    found = matches(*reader, tensors, input);
  });
  // Ranks that read another one, or another part, would have a model of pieces of both.
  input.channel.require_equal(fnv1a(compose(reader->manifest())), "the checkpoint of load()");
  input.channel.require_equal(input.partial ? 1 : 0, "LoadOptions::partial");
  input.channel.together("checkpoint: read", [&](const Pause& pause) {
    for (const std::vector<TensorRange>& pass : my_ranges(found, input)) reader->read(pass, input.block, pause);
    read_converted(*reader, found, input, pause);
  });
  return {.state = reader->state(),
          .outer_steps_begin = input.plan.diverges() && !apart,
          .counts_go_on = programs_with_states(tensors, found, input.plans),
          .states_found = states_found(tensors, found, input.plan)};
}

std::optional<FoundCheckpoint> latest(const LatestInput& input) {
  struct Answer {
    bool found;
    std::uint64_t step;
  } mine{};
  input.channel.together("checkpoint: latest", [&](const Pause&) {
    if (input.channel.rank() != 0) return;
    if (const auto found = look_for_latest(input)) mine = {true, found->step};
  });
  mine = comm::values_of<Answer>(
      input.channel.gather(std::as_bytes(std::span(&mine, 1)), "checkpoint: latest step"))[0];  // rank 0's
  if (!mine.found) return std::nullopt;
  return FoundCheckpoint{.step = mine.step, .path = input.directory / checkpoint_name(mine.step)};
}

}  // namespace tessera::checkpoint
