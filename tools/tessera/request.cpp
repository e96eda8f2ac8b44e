// The options of `tessera plan`, read strictly: a number is digits within its limits, and nothing is given twice.
#include "request.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "tessera/optim/adamw.hpp"
#include "tessera/optim/sgd.hpp"

namespace tools {

using tessera::AccumulationMode;
using tessera::Strategy;

namespace {

constexpr std::size_t most_ranks = std::size_t{1} << 20;
constexpr std::size_t most_micro_batches = 65536;
constexpr std::size_t most_prefetch = 1024;
constexpr std::size_t most_width = std::size_t{1} << 24;
constexpr std::size_t most_layers = 4096;
constexpr std::size_t most_bucket_bytes = std::size_t{1} << 40;

struct Limits {
  std::size_t least;
  std::size_t most;
};

constexpr const char* description =
    "Compiles the plan of a training step of a multilayer perceptron, verifies it, and prints the bytes that the "
    "runtime of each rank would hold. Needs no device and moves no data, so that any --world can be asked for.";
constexpr const char* footer =
    "Example: tessera plan --mlp 64x128x128x10 --world 4 --strategy fsdp --draw\n\n"
    "peak is the size of the arena that a rank allocates; live is the most of it that is in use at once. What the "
    "user's own code holds (activations) is not the runtime's and not counted.\n"
    "Exit code: 0; 1 when the plan cannot be made or is not sound; 2 for bad options.";

std::size_t whole_number(const std::string& name, std::string_view text, Limits limits) {
  std::size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_number = error == std::errc() && end == text.data() + text.size();
  if (is_number && value >= limits.least && value <= limits.most) return value;
  throw OptionError(
      fmt::format("{} takes a whole number from {} to {}, not \"{}\"", name, limits.least, limits.most, text));
}

std::vector<std::size_t> widths(const std::string& name, const std::string& text) {
  std::vector<std::size_t> result;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('x', begin), text.size());
    try {
      result.push_back(whole_number(name, std::string_view(text).substr(begin, end - begin), {1, most_width}));
    } catch (const OptionError&) {
      throw OptionError(fmt::format("{} takes widths from 1 to {} with x between them, as in 64x128x10, not \"{}\"",
                                    name, most_width, text));
    }
    begin = end + 1;
  }
  if (result.size() >= 2 && result.size() <= most_layers + 1) return result;
  throw OptionError(
      fmt::format("{} takes 2 to {} widths, not the {} of \"{}\"", name, most_layers + 1, result.size(), text));
}

void require_each_once(const std::vector<std::string>& arguments) {
  std::set<std::string> seen;
  for (const std::string& argument : arguments) {
    if (argument.size() < 3 || argument.compare(0, 2, "--") != 0) continue;
    const std::string name = argument.substr(0, argument.find('='));
    if (!seen.insert(name).second) throw OptionError(fmt::format("{} is given twice", name));
  }
}

class Options {
 public:
  Options() : app_(description, "tessera plan") {
    app_.footer(footer);
    app_.set_help_flag("--help", "Prints this page")->group("");
    app_.get_formatter()->column_width(34);
  }

  void group(const char* title) { group_ = title; }

  CLI::Option* take(const std::string& name, const std::string& type, const std::string& what,
                    std::function<void(const std::string&)> take) {
    CLI::Option* option = app_.add_option_function<std::string>(name, std::move(take), what);
    return option->group(group_)->type_name(type);
  }

  void whole(const std::string& name, std::size_t& target, Limits limits, const std::string& what) {
    take(name, "N", fmt::format("{} [{}]", what, target),
         [=, &target](const std::string& text) { target = whole_number(name, text, limits); });
  }

  template <typename Value>
  using Choices = std::vector<std::pair<std::string, Value>>;

  template <typename Value>
  void choice(const std::string& name, Value& target, const Choices<Value>& choices, const std::string& what) {
    std::string names;
    for (const auto& [choice, value] : choices) names += (names.empty() ? "" : "|") + choice;
    take(name, names, what, [=, &target](const std::string& text) {
      const auto is_it = [&](const auto& choice) { return choice.first == text; };
      const auto chosen = std::find_if(choices.begin(), choices.end(), is_it);
      if (chosen == choices.end()) throw OptionError(fmt::format("{} takes {}, not \"{}\"", name, names, text));
      target = chosen->second;
    });
  }

  void yes_or_no(const std::string& name, bool& target, const std::string& what) {
    choice<bool>(name, target, {{"yes", true}, {"no", false}}, fmt::format("{} [{}]", what, target ? "yes" : "no"));
  }

  void flag(const std::string& name, bool& target, const std::string& what) {
    app_.add_flag(name, target, what)->group(group_);
  }

  // As parse_plan_request().
  bool parse(std::vector<std::string> arguments) {
    require_each_once(arguments);
    std::reverse(arguments.begin(), arguments.end());  // as CLI11 takes them
    try {
      app_.parse(std::move(arguments));
      return true;
    } catch (const CLI::CallForHelp&) {
      fmt::print("{}", app_.help());
      return false;
    } catch (const CLI::ParseError& error) {
      throw OptionError(error.what());
    }
  }

 private:
  CLI::App app_;
  std::string group_;
};

void add_options(Options& line, PlanRequest& request) {
  tessera::plan::PlanOptions& options = request.options;
  line.group("Model");
  line.take("--mlp", "WxW[xW...]", "Widths of the perceptron: 64x128x10 has two layers. Each layer is a unit",
            [&](const std::string& text) { request.widths = widths("--mlp", text); })
      ->required();
  line.choice<OptimizerKind>("--optimizer", request.optimizer,
                             {{"adamw", OptimizerKind::adamw}, {"sgd", OptimizerKind::sgd}},
                             "adamw keeps two fp32 states per parameter, sgd (with momentum) one [adamw]");
  line.group("Ranks and sharding");
  line.whole("--world", options.ranks, {1, most_ranks}, "Ranks");
  line.choice<Strategy>(
      "--strategy", options.strategy,
      {{"ddp", Strategy::ddp}, {"zero1", Strategy::zero1}, {"zero2", Strategy::zero2}, {"fsdp", Strategy::fsdp}},
      "What each rank keeps whole: all (ddp), parameters and sums of micro-batches (zero1), "
      "parameters (zero2), or nothing [fsdp]");
  line.choice<tessera::Precision>(
      "--precision", options.precision,
      {{"fp32", tessera::fp32_precision}, {"bf16", tessera::bf16_mixed}, {"fp16", tessera::fp16_mixed}},
      "Of parameters and gradients in the windows and on the wire [fp32]");
  line.whole("--prefetch", options.prefetch, {0, most_prefetch}, "Units gathered ahead of the one that computes");
  line.yes_or_no("--reshard-after-forward", options.reshard_after_forward,
                 "Gather units again for the backward pass; no: keep them whole until then");
  line.yes_or_no("--overlap-reduction", options.overlap_reduction,
                 "Reduce a unit's gradient beside the next unit's backward pass, in a second slot");
  line.take("--bucket-cap", "N",
            "Gradients of at most so many bytes are reduced in one operation; 0: each unit's alone [1 MiB; fsdp: 0]",
            [&](const std::string& text) {
              options.bucket_cap = tessera::Bytes(whole_number("--bucket-cap", text, {0, most_bucket_bytes}));
            });
  line.group("Step");
  line.whole("--micro-batches", options.micro_batches, {1, most_micro_batches}, "Micro-batches per step");
  line.choice<AccumulationMode>("--accumulate-mode", options.accumulation,
                                {{"local", AccumulationMode::local}, {"reduced", AccumulationMode::reduced}},
                                "Micro-batches add up on the rank and are reduced once, or each is reduced "
                                "[ddp, zero1: local; zero2, fsdp: reduced]");
  line.group("Output");
  line.flag("--draw", request.draw, "Prints the schedule of every segment too");
  line.flag("--json", request.json, "Prints one JSON object instead of text, sizes in bytes");
}

std::vector<std::string> states_of(OptimizerKind kind) {
  const std::unique_ptr<tessera::Optimizer> optimizer =
      kind == OptimizerKind::adamw ? std::unique_ptr<tessera::Optimizer>(tessera::AdamW{})
                                   : std::unique_ptr<tessera::Optimizer>(tessera::Sgd{.momentum = 0.9f});
  return optimizer->states();
}

}  // namespace

std::optional<PlanRequest> parse_plan_request(std::vector<std::string> arguments) {
  PlanRequest request;
  Options line;
  add_options(line, request);
  if (!line.parse(std::move(arguments))) return std::nullopt;
  if (request.draw && request.json) throw OptionError("--draw and --json exclude each other");
  return request;
}

tessera::plan::CompileInput compile_input(const PlanRequest& request) {
  tessera::plan::CompileInput input;
  for (std::size_t layer = 0; layer + 1 < request.widths.size(); ++layer) {
    const std::size_t in = request.widths[layer];
    const std::size_t out = request.widths[layer + 1];
    const std::string name = fmt::format("layers.{}", layer);
    input.units.push_back({name, {{name + ".weight", {out, in}}, {name + ".bias", {out}}}});
  }
  input.program = tessera::plan::Program::chain(input.units.size());
  input.options = request.options;
  input.optimizer_states = states_of(request.optimizer);
  return input;
}

}  // namespace tools
