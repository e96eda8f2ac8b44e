// Floating-point numbers stand twice: in decimal for people, and as the digits of their bits, which are what is read.
#include "tessera/checkpoint/state.hpp"

#include <fmt/format.h>

#include <bit>
#include <iterator>
#include <limits>
#include <utility>

#include "checkpoint/checksum.hpp"
#include "checkpoint/json_form.hpp"
#include "checkpoint/safetensors_header.hpp"
#include "tessera/base/error.hpp"

namespace tessera {

namespace {

using checkpoint::JsonForm;
using checkpoint::JsonMember;
using checkpoint::JsonRefusal;
using checkpoint::JsonText;

constexpr std::string_view state_format_name = "tessera-state";
// Another one means something else by the same members: 1 had no sampler.order, 3 has replicas, 4 has programs, 5 has
// states_updates, and replicas or programs where there are any.
constexpr std::uint64_t state_version = 2;
constexpr std::uint64_t state_version_of_replicas = 3;
constexpr std::uint64_t state_version_of_programs = 4;
constexpr std::uint64_t state_version_of_young_states = 5;
constexpr std::uint64_t state_revision = 0;  // a later one only adds members that a reader may leave out

template <typename Bits, typename Number>
void add_number(JsonText& text, Number number) {
  text.begin_object().key("value").number(number);
  text.member("bits", checkpoint::to_hexadecimal(std::bit_cast<Bits>(number))).end_object();
}

// In a file of a later revision, at every depth, unknown members are skipped. `revision`: the file's, which stands
// before all objects.
JsonForm object_form(const std::uint64_t& revision, std::vector<JsonMember> members) {
  JsonForm form = JsonForm::object(std::move(members));
  form.accepts_unknown = [&revision] { return revision > state_revision; };
  return form;
}

template <typename Bits, typename Number>
JsonForm number_form(const std::uint64_t& revision, std::function<void(Number)> take) {
  const auto parse = [take = std::move(take)](std::string_view text) {
    const auto bits = checkpoint::from_hexadecimal<Bits>(text);
    if (!bits) {
      throw JsonRefusal{
          fmt::format("expected {} hexadecimal digits, found {}", 2 * sizeof(Bits), checkpoint::shown_name(text))};
    }
    take(std::bit_cast<Number>(*bits));
  };
  return object_form(revision, {{"value", JsonForm::number()}, {"bits", JsonForm::text(parse)}});
}

template <typename Counts>
void add_counts(JsonText& text, const Counts& counts) {
  if (counts.good_steps < 0) throw UsageError(fmt::format("checkpoint: good_steps is {}", counts.good_steps));
  text.member("updates", counts.updates).member("skipped_updates", counts.skipped_updates);
  add_number<std::uint32_t>(text.key("loss_scale"), counts.loss_scale);
  text.member("good_steps", static_cast<std::uint64_t>(counts.good_steps)).key("decay_power").begin_list();
  for (const double power : counts.decay_power) add_number<std::uint64_t>(text, power);
  text.end_list();
}

void add_sampler(JsonText& text, const SamplerState& sampler) {
  text.key("sampler").begin_object().member("samples", sampler.samples).member("seed", sampler.seed);
  text.member("epoch", sampler.epoch).member("position", sampler.position).member("order", sampler.order);
  text.end_object();
}

JsonForm whole_form(std::uint64_t& target) {
  return JsonForm::whole([&target](std::uint64_t value) { target = value; });
}

// The functions of the form keep this beside the state.
struct Parsed {
  CheckpointState state;
  std::uint64_t version = 0;
  std::uint64_t revision = 0;
  std::size_t decays = 0;
  StepCounts replica;  // of the list, the one that is being read
  std::size_t decays_of_replica = 0;
  ProgramCounts program;  // likewise
  std::size_t decays_of_program = 0;
  std::string parameter;  // likewise
  std::uint64_t updates = 0;
};

// The file's version stands before the sampler.
JsonForm sampler_form(Parsed& parsed) {
  std::optional<SamplerState>& sampler = parsed.state.sampler;
  const auto member = [&sampler](std::uint64_t SamplerState::*which) {
    return JsonForm::whole([&sampler, which](std::uint64_t value) { (*sampler).*which = value; });
  };
  JsonForm form = object_form(parsed.revision, {{"samples", member(&SamplerState::samples)},
                                                {"seed", member(&SamplerState::seed)},
                                                {"epoch", member(&SamplerState::epoch)},
                                                {"position", member(&SamplerState::position)},
                                                {"order", member(&SamplerState::order), false}});
  constexpr std::uint64_t missing = std::numeric_limits<std::uint64_t>::max();
  form.begin = [&sampler] { sampler.emplace().order = missing; };
  form.end = [&sampler, &parsed] {
    const bool has_order = sampler->order != missing;
    if (has_order != (parsed.version > 1)) throw JsonRefusal{fmt::format("has {} \"order\"", has_order ? "an" : "no")};
    if (!has_order) sampler->order = 1;
  };
  return form;
}

JsonForm decay_form(const std::uint64_t& revision, std::array<double, 2>& decay, std::size_t& count) {
  JsonForm form = JsonForm::list(number_form<std::uint64_t, double>(revision, [&](double power) {
    if (count == decay.size()) throw JsonRefusal{"there must be two"};
    decay[count++] = power;
  }));
  form.end = [&] {
    if (count != decay.size()) throw JsonRefusal{"there must be two"};
  };
  return form;
}

void check_state_version(std::uint64_t found) {
  if (found == 0) throw JsonRefusal{"there is no version 0"};
  if (found <= state_version_of_young_states) return;
  throw JsonRefusal{fmt::format(
      "{} was written by a newer version of Tessera; this one reads up to {}: read it with that version or a later one",
      found, state_version_of_young_states)};
}

JsonForm good_steps_form(std::int32_t& target) {
  return JsonForm::whole([&target](std::uint64_t value) {
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max())) {
      throw JsonRefusal{fmt::format("{} is too large", value)};
    }
    target = static_cast<std::int32_t>(value);
  });
}

void check_lists(const Parsed& parsed) {
  const auto check = [&](bool has, std::uint64_t version, const char* what) {
    if (has == (parsed.version == version)) return;
    throw JsonRefusal{fmt::format("is of version {} and has {}{}", parsed.version, has ? "" : "no ", what)};
  };
  check(!parsed.state.states_updates.empty(), state_version_of_young_states, "states_updates");
  if (parsed.version == state_version_of_young_states) return;
  check(!parsed.state.replicas.empty(), state_version_of_replicas, "replicas");
  check(!parsed.state.programs.empty(), state_version_of_programs, "programs");
}

// Describes the counts of a replica, or of a run whose replicas all count alike.
template <typename Counts>
std::vector<JsonMember> count_members(const std::uint64_t& revision, Counts& counts, std::size_t& decays) {
  return {{"updates", whole_form(counts.updates)},
          {"skipped_updates", whole_form(counts.skipped_updates)},
          {"loss_scale", number_form<std::uint32_t, float>(revision, [&](float scale) { counts.loss_scale = scale; })},
          {"good_steps", good_steps_form(counts.good_steps)},
          {"decay_power", decay_form(revision, counts.decay_power, decays)}};
}

JsonForm replicas_form(Parsed& parsed) {
  JsonForm replica =
      object_form(parsed.revision, count_members(parsed.revision, parsed.replica, parsed.decays_of_replica));
  replica.begin = [&parsed] {
    parsed.replica = {};
    parsed.decays_of_replica = 0;
  };
  replica.end = [&parsed] { parsed.state.replicas.push_back(parsed.replica); };
  return JsonForm::list(std::move(replica));
}

JsonForm programs_form(Parsed& parsed) {
  std::vector<JsonMember> members = {
      {"name", JsonForm::text([&parsed](std::string_view name) { parsed.program.program = name; })}};
  std::vector<JsonMember> counts = count_members(parsed.revision, parsed.program, parsed.decays_of_program);
  std::move(counts.begin(), counts.end(), std::back_inserter(members));
  JsonForm program = object_form(parsed.revision, std::move(members));
  program.begin = [&parsed] {
    parsed.program = {};
    parsed.decays_of_program = 0;
  };
  program.end = [&parsed] { parsed.state.programs.push_back(parsed.program); };
  return JsonForm::list(std::move(program));
}

JsonForm states_updates_form(Parsed& parsed) {
  JsonForm entry = object_form(
      parsed.revision, {{"parameter", JsonForm::text([&parsed](std::string_view name) { parsed.parameter = name; })},
                        {"updates", whole_form(parsed.updates)}});
  entry.end = [&parsed] { parsed.state.states_updates[parsed.parameter] = parsed.updates; };
  return JsonForm::list(std::move(entry));
}

JsonForm state_form(Parsed& parsed) {
  CheckpointState& state = parsed.state;
  const auto take_format = [](std::string_view name) {
    if (name != state_format_name) throw JsonRefusal{"is not that of a checkpoint's state"};
  };
  const auto take_version = [&](std::uint64_t found) {
    check_state_version(found);
    parsed.version = found;
  };
  std::vector<JsonMember> members = {{"format", JsonForm::text(take_format)},
                                     {"version", JsonForm::whole(take_version)},
                                     {"revision", whole_form(parsed.revision)},
                                     {"step", whole_form(state.step)}};
  std::vector<JsonMember> counts = count_members(parsed.revision, state, parsed.decays);
  std::move(counts.begin(), counts.end(), std::back_inserter(members));
  members.push_back({"replicas", replicas_form(parsed), false});
  members.push_back({"programs", programs_form(parsed), false});
  members.push_back({"states_updates", states_updates_form(parsed), false});
  members.push_back({"sampler", sampler_form(parsed), false});
  members.push_back(
      {"values", JsonForm::texts([&](const std::string& name, std::string_view text) { state.values[name] = text; })});
  JsonForm form = object_form(parsed.revision, std::move(members));
  form.end = [&parsed] { check_lists(parsed); };
  return form;
}

std::uint64_t version_of(const CheckpointState& state) {
  if (!state.states_updates.empty()) return state_version_of_young_states;
  if (!state.replicas.empty()) return state_version_of_replicas;
  return state.programs.empty() ? state_version : state_version_of_programs;
}

}  // namespace

std::string compose(const CheckpointState& state) {
  if (!state.replicas.empty() && !state.programs.empty()) {
    throw UsageError("checkpoint: a state has counts of replicas or of programs, not both");
  }
  JsonText object(JsonText::Form::indented, "checkpoint: values and their names must be UTF-8");
  object.begin_object()
      .member("format", state_format_name)
      .member("version", version_of(state))
      .member("revision", state_revision)
      .member("step", state.step);
  add_counts(object, state);
  if (!state.replicas.empty()) {
    object.key("replicas").begin_list();
    for (const StepCounts& replica : state.replicas) {
      object.begin_object();
      add_counts(object, replica);
      object.end_object();
    }
    object.end_list();
  }
  if (!state.programs.empty()) {
    object.key("programs").begin_list();
    for (const ProgramCounts& program : state.programs) {
      object.begin_object().member("name", program.program);
      add_counts(object, program);
      object.end_object();
    }
    object.end_list();
  }
  if (!state.states_updates.empty()) {
    object.key("states_updates").begin_list();
    for (const auto& [parameter, updates] : state.states_updates) {
      object.begin_object().member("parameter", parameter).member("updates", updates).end_object();
    }
    object.end_list();
  }
  if (state.sampler) add_sampler(object, *state.sampler);
  const std::string text = object.member("values", state.values).end_object().take() + "\n";
  if (text.size() > state_limit.count()) {
    throw UsageError(fmt::format(
        "checkpoint: a state of {} bytes, of values and names, is more than the {} that a checkpoint may have",
        text.size(), state_limit.count()));
  }
  return text;
}

CheckpointState parse_state(std::string_view text, const std::filesystem::path& path) {
  Parsed parsed;
  const JsonForm form = state_form(parsed);
  checkpoint::parse_json(text, form, path.string());
  return std::move(parsed.state);
}

}  // namespace tessera
