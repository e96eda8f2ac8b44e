// `tessera verify-bits`: two runs by their metrics files, step by step, until they part.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "checkpoint_command.hpp"
#include "commands.hpp"
#include "json/json.hpp"
#include "options.hpp"
#include "text.hpp"

namespace tools {

namespace verify_bits {

// A run as far as its metrics file tells it: the object of each step.
struct Run {
  std::filesystem::path path;
  std::map<std::uint64_t, Json> steps;
  bool is_cut = false;  // inside its last line
};

// A figure is compared beside the weights; they stand in the order in which a step comes to them. `key`: in the
// metrics; `shown`: the number that stands beside its bits.
struct Figure {
  std::string_view name, key, shown;
};
constexpr std::array<Figure, 7> figures = {{{"samples", "samples", "samples"},
                                            {"learning rate", "lr", "lr"},
                                            {"loss", "loss_bits", "loss"},
                                            {"gradient norm", "grad_norm_bits", "grad_norm"},
                                            {"loss scale", "loss_scale", "loss_scale"},
                                            {"held-out loss", "held_out_loss_bits", "held_out_loss"},
                                            {"accuracy", "accuracy", "accuracy"}}};

// Where two runs part first in one figure.
struct Parting {
  std::string_view figure;
  std::uint64_t step;
  std::string a, b;
};

struct Comparison {
  std::uint64_t first_step = 0;
  std::uint64_t last_step = 0;
  std::size_t steps = 0;                        // that both have
  std::size_t tensors = 0;                      // of a step
  std::vector<std::string_view> compared = {};  // figures that both have in some step
  std::vector<Parting> partings = {};
  std::optional<std::uint64_t> weights_part_at = std::nullopt;
  std::vector<std::string> parted_tensors = {};  // after that step, in the model's order

  bool equal() const { return partings.empty() && !weights_part_at; }
};

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& why) {
  throw OptionError(fmt::format("{}: {}", path.string(), why));
}

std::pair<std::uint64_t, Json> parse_step(const std::filesystem::path& path, std::size_t line,
                                          const std::string& text) {
  try {
    Json object = Json::parse(text);
    const std::uint64_t step = object.at("step").whole();
    return {step, std::move(object)};
  } catch (const JsonError&) {
    refuse(path, fmt::format("line {} is not a step's metrics: give files that --metrics of a trainer wrote", line));
  }
}

Run read_run(const std::filesystem::path& path) {
  if (std::filesystem::is_directory(path)) refuse(path, "is a folder: give a file that --metrics of a trainer wrote");
  std::ifstream lines(path);
  if (!lines) refuse(path, fmt::format("cannot be opened: {}", std::generic_category().message(errno)));
  Run run{path, {}};
  std::size_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    run.is_cut = lines.eof();  // a killed run may have left a part of its last line
    if (run.is_cut) break;
    auto [step, object] = parse_step(path, number, line);
    if (!run.steps.empty() && step <= run.steps.rbegin()->first) {
      refuse(path, fmt::format("line {} is of step {}, after step {}: a run's steps rise", number, step,
                               run.steps.rbegin()->first));
    }
    run.steps.emplace(step, std::move(object));
  }
  if (run.steps.empty()) refuse(path, run.is_cut ? "has no step: its only line has no end" : "has no step");
  return run;
}

const Json::Object& hashes_of(const Run& run, std::uint64_t step) {
  const Json& object = run.steps.at(step);
  if (!object.contains("tensor_hashes")) {
    refuse(run.path,
           fmt::format("step {} has no hash of the weights: let the run write them with --hash-weights", step));
  }
  try {
    const Json::Object& hashes = object.at("tensor_hashes").members();
    if (!hashes.empty()) return hashes;
  } catch (const JsonError&) {
    refuse(run.path, fmt::format("the tensor_hashes of step {} are not what --hash-weights writes", step));
  }
  refuse(run.path, fmt::format("the tensor_hashes of step {} have no tensor", step));
}

[[noreturn]] void refuse_other_tensors(const Run& a, const Json::Object& of_a, const Run& b, const Json::Object& of_b) {
  const auto has = [](const Json::Object& tensors, const std::string& name) {
    return std::any_of(tensors.begin(), tensors.end(), [&](const JsonMember& each) { return each.key == name; });
  };
  for (const auto& [mine, theirs, run] : {std::tuple(&of_a, &of_b, &a), std::tuple(&of_b, &of_a, &b)}) {
    for (const JsonMember& tensor : *mine) {
      if (has(*theirs, tensor.key)) continue;
      refuse(run->path, fmt::format("has the tensor {}, which the other file has not: they are of different models",
                                    printable(tensor.key)));
    }
  }
  refuse(b.path,
         fmt::format("has its tensors in another order than {}: they are of different models", a.path.string()));
}

void compare_weights(Comparison& comparison, const Run& a, const Run& b, std::uint64_t step) {
  const Json::Object& of_a = hashes_of(a, step);
  const Json::Object& of_b = hashes_of(b, step);
  const bool alike = std::equal(of_a.begin(), of_a.end(), of_b.begin(), of_b.end(),
                                [](const JsonMember& x, const JsonMember& y) { return x.key == y.key; });
  if (!alike) refuse_other_tensors(a, of_a, b, of_b);
  comparison.tensors = of_a.size();
  if (comparison.weights_part_at) return;
  for (std::size_t i = 0; i < of_a.size(); ++i) {
    if (!(of_a[i].value == of_b[i].value)) comparison.parted_tensors.push_back(of_a[i].key);
  }
  if (!comparison.parted_tensors.empty()) comparison.weights_part_at = step;
}

std::string shown(const Json& step, const Figure& figure) {
  const Json& found = step.at(figure.key);
  const std::string text = found.is_text() ? printable(found.text()) : found.dump();
  if (figure.key == figure.shown || !step.contains(figure.shown)) return text;
  return fmt::format("{} ({})", step.at(figure.shown).dump(), text);
}

// A figure that one of the two has not (runs evaluate after steps of their own) says nothing.
void compare_figures(Comparison& comparison, const Json& a, const Json& b, std::uint64_t step) {
  for (const Figure& figure : figures) {
    if (!a.contains(figure.key) || !b.contains(figure.key)) continue;
    auto& compared = comparison.compared;
    if (std::find(compared.begin(), compared.end(), figure.name) == compared.end()) compared.push_back(figure.name);
    const bool known = std::any_of(comparison.partings.begin(), comparison.partings.end(),
                                   [&](const Parting& parting) { return parting.figure == figure.name; });
    if (known) continue;
    if (a.at(figure.key) == b.at(figure.key)) continue;
    comparison.partings.push_back({figure.name, step, shown(a, figure), shown(b, figure)});
  }
}

std::string range_text(std::uint64_t first, std::uint64_t last) {
  return first == last ? fmt::format("step {}", first) : fmt::format("steps {} to {}", first, last);
}

std::string steps_text(const Run& run) {
  return range_text(run.steps.begin()->first, run.steps.rbegin()->first) +
         (run.is_cut ? ", and a part of another one, which does not count" : "");
}

Comparison compare(const Run& a, const Run& b) {
  Comparison comparison;
  for (const auto& [step, of_a] : a.steps) {
    const auto of_b = b.steps.find(step);
    if (of_b == b.steps.end()) continue;
    if (comparison.steps++ == 0) comparison.first_step = step;
    comparison.last_step = step;
    compare_figures(comparison, of_a, of_b->second, step);
    compare_weights(comparison, a, b, step);
  }
  if (comparison.steps == 0) {
    refuse(a.path, fmt::format("has {} and {} has {}: they have no step in common", steps_text(a), b.path.string(),
                               steps_text(b)));
  }
  return comparison;
}

std::string text_of(const Run& a, const Run& b, const Comparison& comparison) {
  constexpr std::size_t most_named = 8;
  std::string text =
      fmt::format("A: {}, {}\nB: {}, {}\n", a.path.string(), steps_text(a), b.path.string(), steps_text(b));
  const std::string steps = range_text(comparison.first_step, comparison.last_step);
  if (comparison.equal()) {
    const std::string which =
        comparison.steps == 1 ? steps + " has" : fmt::format("{} steps, {}, have", grouped(comparison.steps), steps);
    return text + fmt::format("equal: {} the same bits: {}, and the weights of {}\n", which,
                              fmt::join(comparison.compared, ", "), counted(comparison.tensors, "tensor", "tensors"));
  }
  for (const Parting& parting : comparison.partings) {
    text += fmt::format("{} parts at step {}: A {}, B {}\n", parting.figure, parting.step, parting.a, parting.b);
  }
  if (!comparison.weights_part_at) {
    return text + fmt::format("the weights are the same after {}\n", steps);
  }
  const std::vector<std::string>& parted = comparison.parted_tensors;
  text += fmt::format("weights part at step {}, in {} of {}:\n", *comparison.weights_part_at, grouped(parted.size()),
                      counted(comparison.tensors, "tensor", "tensors"));
  for (std::size_t i = 0; i < std::min(parted.size(), most_named); ++i) text += "  " + printable(parted[i]) + "\n";
  if (parted.size() > most_named) text += fmt::format("  and {} more\n", grouped(parted.size() - most_named));
  return text;
}

Json json_of(const Run& a, const Run& b, const Comparison& comparison) {
  Json object = {{"a", a.path.string()},
                 {"b", b.path.string()},
                 {"equal", comparison.equal()},
                 {"steps", comparison.steps},
                 {"first_step", comparison.first_step},
                 {"last_step", comparison.last_step},
                 {"tensors", comparison.tensors}};
  object["figures"] = Json::array();
  for (const Parting& parting : comparison.partings) {
    object["figures"].push_back(
        {{"figure", std::string(parting.figure)}, {"step", parting.step}, {"a", parting.a}, {"b", parting.b}});
  }
  object["weights_step"] = Json(comparison.weights_part_at);
  object["weights"] = Json(comparison.parted_tensors);
  return object;
}

}  // namespace verify_bits

bool run_verify_bits(std::vector<std::string> arguments) {
  using namespace verify_bits;
  std::filesystem::path path_a, path_b;
  bool json = false;
  CommandLine options(
      "Says at which step two training runs part first, and in which tensors, or that they have the same bits.",
      "Both runs wrote --metrics with --hash-weights. Steps that both files have are compared: losses and norms by "
      "their bits, weights after the step by the hash of each tensor. With --granules runs on any number of ranks are "
      "equal.\n\n"
      "Example:\n"
      "  train_gpt --granules 12 --ranks 2 --steps 20 --hash-weights --metrics a.jsonl\n"
      "  train_gpt --granules 12 --ranks 3 --steps 20 --hash-weights --metrics b.jsonl\n"
      "  tessera verify-bits a.jsonl b.jsonl\n\n"
      "Exit code: 0 when all these steps have the same bits; 1 when they part; 2 for bad options and for files that "
      "cannot be compared, because they cannot be read, have no hashes, no step in common or other tensors.",
      "tessera verify-bits");
  options.place("A", path_a, "The metrics of a run");
  options.place("B", path_b, "Those of another one");
  options.flag("--json", json, "Prints JSON");
  if (!options.parse(std::move(arguments))) return true;
  const Run a = read_run(path_a);
  const Run b = read_run(path_b);
  const Comparison comparison = compare(a, b);
  fmt::print("{}", json ? object_text(json_of(a, b, comparison)) : text_of(a, b, comparison));
  return comparison.equal();
}

}  // namespace tools
