// Floating-point numbers stand twice: in decimal for people, and as the digits of their bits, which are what is read.
#include "tessera/checkpoint/state.hpp"

#include <fmt/format.h>

#include <bit>
#include <limits>

#include "checkpoint/checksum.hpp"
#include "checkpoint/json_form.hpp"
#include "checkpoint/safetensors_header.hpp"
#include "tessera/base/error.hpp"

namespace tessera {

namespace {

using checkpoint::JsonForm;
using checkpoint::JsonRefusal;
using checkpoint::JsonText;

constexpr std::string_view state_format_name = "tessera-state";
constexpr std::uint64_t state_version =
    2;  // another one means something else by the same members; 1 had no sampler.order
constexpr std::uint64_t state_revision = 0;  // a later one only adds members that a reader may leave out

template <typename Bits, typename Number>
void add_number(JsonText& text, Number number) {
  text.begin_object().key("value").number(number);
  text.member("bits", checkpoint::to_hexadecimal(std::bit_cast<Bits>(number))).end_object();
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

void add_sampler(JsonText& text, const SamplerState& sampler) {
  text.key("sampler").begin_object().member("samples", sampler.samples).member("seed", sampler.seed);
  text.member("epoch", sampler.epoch).member("position", sampler.position).member("order", sampler.order);
  text.end_object();
}

JsonForm whole_form(std::uint64_t& target) {
  return JsonForm::whole([&target](std::uint64_t value) { target = value; });
}

// `found`: the file's version, which stands before the sampler.
JsonForm sampler_form(std::optional<SamplerState>& sampler, const std::uint64_t& found) {
  const auto member = [&sampler](std::uint64_t SamplerState::*which) {
    return JsonForm::whole([&sampler, which](std::uint64_t value) { (*sampler).*which = value; });
  };
  JsonForm form = JsonForm::object({{"samples", member(&SamplerState::samples)},
                                    {"seed", member(&SamplerState::seed)},
                                    {"epoch", member(&SamplerState::epoch)},
                                    {"position", member(&SamplerState::position)},
                                    {"order", member(&SamplerState::order), false}});
  form.begin = [&sampler] { sampler.emplace().order = 0; };
  form.end = [&] {
    const bool has_order = sampler->order != 0;
    if (has_order != (found > 1)) throw JsonRefusal{fmt::format("has {} \"order\"", has_order ? "an" : "no")};
    if (!has_order) sampler->order = 1;
  };
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
  std::uint64_t version = 0;
  std::uint64_t revision = 0;
  std::size_t decays = 0;
};

void check_state_version(std::uint64_t found) {
  if (found == 0) throw JsonRefusal{"there is no version 0"};
  if (found <= state_version) return;
  throw JsonRefusal{fmt::format(
      "{} was written by a newer version of Tessera; this one reads up to {}: read it with that version or a later one",
      found, state_version)};
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
          if (name != state_format_name) throw JsonRefusal{"is not that of a checkpoint's state"};
        })},
       {"version", JsonForm::whole([&](std::uint64_t found) {
          check_state_version(found);
          parsed.version = found;
        })},
       {"revision", whole_form(parsed.revision)},
       {"step", whole_form(state.step)},
       {"updates", whole_form(state.updates)},
       {"skipped_updates", whole_form(state.skipped_updates)},
       {"loss_scale", number_form<std::uint32_t, float>([&](float scale) { state.loss_scale = scale; })},
       {"good_steps", good_steps_form(state.good_steps)},
       {"decay_power", decay_form(state.decay_power, parsed.decays)},
       {"sampler", sampler_form(state.sampler, parsed.version), false},
       {"values",
        JsonForm::texts([&](const std::string& name, std::string_view text) { state.values[name] = text; })}});
  form.accepts_unknown = [&parsed] { return parsed.revision > state_revision; };
  return form;
}

}  // namespace

std::string compose(const CheckpointState& state) {
  if (state.good_steps < 0) throw UsageError(fmt::format("checkpoint: good_steps is {}", state.good_steps));
  JsonText object(JsonText::Form::indented, "checkpoint: values and their names must be UTF-8");
  object.begin_object()
      .member("format", state_format_name)
      .member("version", state_version)
      .member("revision", state_revision);
  object.member("step", state.step).member("updates", state.updates).member("skipped_updates", state.skipped_updates);
  add_number<std::uint32_t>(object.key("loss_scale"), state.loss_scale);
  object.member("good_steps", static_cast<std::uint64_t>(state.good_steps)).key("decay_power").begin_list();
  for (const double power : state.decay_power) add_number<std::uint64_t>(object, power);
  object.end_list();
  if (state.sampler) add_sampler(object, *state.sampler);
  const std::string text = object.member("values", state.values).end_object().take() + "\n";
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
