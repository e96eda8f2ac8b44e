// Floating-point numbers stand twice: in decimal for people, and as the digits of their bits, which are what is read.
#include "tessera/checkpoint/state.hpp"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "checkpoint/checksum.hpp"
#include "checkpoint/json_form.hpp"
#include "checkpoint/safetensors_header.hpp"
#include "tessera/base/error.hpp"

namespace tessera {

namespace {

using checkpoint::JsonForm;
using checkpoint::JsonRefusal;
using nlohmann::ordered_json;

constexpr std::string_view format_name = "tessera-state";
constexpr std::uint64_t version = 1;   // another one means something else by the same members
constexpr std::uint64_t revision = 0;  // a later one only adds members that a reader may leave out

template <typename Bits, typename Number>
ordered_json number_json(Number number) {
  ordered_json value;  // null where JSON has no such number
  if (std::isfinite(number)) value = number;
  return {{"value", value}, {"bits", checkpoint::to_hexadecimal(std::bit_cast<Bits>(number))}};
}

template <typename Bits, typename Number>
JsonForm number_form(std::function<void(Number)> take) {
  const auto parse = [take = std::move(take)](std::string_view text) {
    const auto bits = checkpoint::from_hexadecimal<Bits>(text);
    if (!bits) {
      throw JsonRefusal{
          fmt::format("expected {} hexadecimal digits, found {}", 2 * sizeof(Bits), checkpoint::shown_name(text))};
    }
    take(std::bit_cast<Number>(*bits));
  };
  return JsonForm::object({{"value", JsonForm::number()}, {"bits", JsonForm::text(parse)}});
}

ordered_json sampler_json(const SamplerState& sampler) {
  return {
      {"samples", sampler.samples}, {"seed", sampler.seed}, {"epoch", sampler.epoch}, {"position", sampler.position}};
}

JsonForm whole_form(std::uint64_t& target) {
  return JsonForm::whole([&target](std::uint64_t value) { target = value; });
}

JsonForm sampler_form(std::optional<SamplerState>& sampler) {
  const auto member = [&sampler](std::uint64_t SamplerState::*which) {
    return JsonForm::whole([&sampler, which](std::uint64_t value) { (*sampler).*which = value; });
  };
  JsonForm form = JsonForm::object({{"samples", member(&SamplerState::samples)},
                                    {"seed", member(&SamplerState::seed)},
                                    {"epoch", member(&SamplerState::epoch)},
                                    {"position", member(&SamplerState::position)}});
  form.begin = [&sampler] { sampler.emplace(); };
  return form;
}

JsonForm decay_form(std::array<double, 2>& decay, std::size_t& count) {
  JsonForm form = JsonForm::list(number_form<std::uint64_t, double>([&](double power) {
    if (count == decay.size()) throw JsonRefusal{"there must be two"};
    decay[count++] = power;
  }));
  form.end = [&] {
    if (count != decay.size()) throw JsonRefusal{"there must be two"};
  };
  return form;
}

// What the functions of the form keep beside the state.
struct Parsed {
  CheckpointState state;
  std::uint64_t revision = 0;
  std::size_t decays = 0;
};

void check_version(std::uint64_t found) {
  if (found == version) return;
  if (found == 0) throw JsonRefusal{"there is no version 0"};
  throw JsonRefusal{fmt::format(
      "{} was written by a newer version of Tessera; this one reads up to {}: read it with that version or a later one",
      found, version)};
}

JsonForm good_steps_form(std::int32_t& target) {
  return JsonForm::whole([&target](std::uint64_t value) {
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max())) {
      throw JsonRefusal{fmt::format("{} is too large", value)};
    }
    target = static_cast<std::int32_t>(value);
  });
}

JsonForm state_form(Parsed& parsed) {
  CheckpointState& state = parsed.state;
  JsonForm form = JsonForm::object(
      {{"format", JsonForm::text([](std::string_view name) {
          if (name != format_name) throw JsonRefusal{"is not that of a checkpoint's state"};
        })},
       {"version", JsonForm::whole(check_version)},
       {"revision", whole_form(parsed.revision)},
       {"step", whole_form(state.step)},
       {"updates", whole_form(state.updates)},
       {"skipped_updates", whole_form(state.skipped_updates)},
       {"loss_scale", number_form<std::uint32_t, float>([&](float scale) { state.loss_scale = scale; })},
       {"good_steps", good_steps_form(state.good_steps)},
       {"decay_power", decay_form(state.decay_power, parsed.decays)},
       {"sampler", sampler_form(state.sampler), false},
       {"values",
        JsonForm::texts([&](const std::string& name, std::string_view text) { state.values[name] = text; })}});
  form.accepts_unknown = [&parsed] { return parsed.revision > revision; };
  return form;
}

}  // namespace

std::string compose(const CheckpointState& state) {
  if (state.good_steps < 0) throw UsageError(fmt::format("checkpoint: good_steps is {}", state.good_steps));
  ordered_json object = {
      {"format", format_name},
      {"version", version},
      {"revision", revision},
      {"step", state.step},
      {"updates", state.updates},
      {"skipped_updates", state.skipped_updates},
      {"loss_scale", number_json<std::uint32_t>(state.loss_scale)},
      {"good_steps", state.good_steps},
      {"decay_power",
       {number_json<std::uint64_t>(state.decay_power[0]), number_json<std::uint64_t>(state.decay_power[1])}}};
  if (state.sampler) object["sampler"] = sampler_json(*state.sampler);
  object["values"] = state.values;
  std::string text;
  try {
    text = object.dump(1) + "\n";
  } catch (const ordered_json::type_error&) {
    throw UsageError("checkpoint: values and their names must be UTF-8");
  }
  if (text.size() > state_limit.count()) {
    throw UsageError(
        fmt::format("checkpoint: values of {} bytes in all are more than the {} that a checkpoint's state may have",
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
