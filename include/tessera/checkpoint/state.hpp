// state.json of a checkpoint: the few numbers that a run continues with beside its tensors. Byte by byte:
// docs/checkpoint_format.md.
// Errors: DataError; the text begins with the path.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/bytes.hpp"
#include "tessera/data/sampler.hpp"

#pragma GCC visibility push(default)

namespace tessera {

inline constexpr std::string_view state_name = "state.json";
inline constexpr Bytes state_limit{100'000'000};  // a longer file is neither written nor read

// The counts of a program's steps are those of all ranks, or of a replica where replicas train apart between outer
// steps.
struct StepCounts {
  std::uint64_t updates = 0;
  std::uint64_t skipped_updates = 0;
  float loss_scale = 1.0f;
  std::int32_t good_steps = 0;
  std::array<double, 2> decay_power = {1.0, 1.0};
  friend bool operator==(const StepCounts&, const StepCounts&) = default;
};

struct ProgramCounts : StepCounts {
  std::string program;
  friend bool operator==(const ProgramCounts&, const ProgramCounts&) = default;
};

struct CheckpointState {
  std::uint64_t step = 0;             // of the run: steps taken, skipped updates included
  std::uint64_t updates = 0;          // that were applied
  std::uint64_t skipped_updates = 0;  // because the gradient's norm was not finite
  float loss_scale = 1.0f;
  std::int32_t good_steps = 0;  // in a row, since the loss scale last changed; not negative
  std::array<double, 2> decay_power = {1.0, 1.0};
  std::optional<SamplerState> sampler = std::nullopt;
  std::map<std::string, std::string> values = {};  // the user's own: names and texts, in UTF-8
  // A run with outer steps has one for each replica, and what stands above is the first's; else none.
  std::vector<StepCounts> replicas = {};
  // A model of several programs has one for each, and what stands above is the first's; else none. Not both.
  std::vector<ProgramCounts> programs = {};
  // Counts by parameter: the updates that its optimizer's states have seen, where those are not all that its program
  // counts, as of what was thawed; with outer steps the first replica's.
  std::map<std::string, std::uint64_t> states_updates = {};
  friend bool operator==(const CheckpointState&, const CheckpointState&) = default;
};

// The text of the file; numbers keep every bit, NaN's too. Throws UsageError: good_steps negative, a value that is not
// UTF-8, or more of them and of names than a file may have.
std::string compose(const CheckpointState& state);

// The inverse. Members that it does not know are an error, unless the file says that it is of a later revision of its
// version; then they are skipped.
CheckpointState parse_state(std::string_view text, const std::filesystem::path& path);

}  // namespace tessera

#pragma GCC visibility pop
