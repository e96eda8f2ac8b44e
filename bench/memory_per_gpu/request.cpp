// Options, read strictly, and the models that they name.
#include "memory_per_gpu/request.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "common/command_line.hpp"
#include "models/gpt.hpp"
#include "models/model.hpp"
#include "models/units_file.hpp"
#include "plot/plot.hpp"
#include "tessera/base/error.hpp"

namespace bench {

using examples::OptionError;

namespace {

constexpr std::size_t most_ranks = std::size_t{1} << 20;
constexpr std::size_t most_width = std::size_t{1} << 24;
constexpr std::size_t most_layers = 4096;

constexpr const char* description =
    "Bytes per rank of a training job: planned, really taken, and by the ZeRO formulas, for strategies x precisions x "
    "ranks x replicas. Up to 8 ranks really run, each a thread; of more one runs and the others are imagined. Layers "
    "compute "
    "nothing, so what is measured is the runtime's.";
constexpr const char* footer =
    "Examples: memory_per_gpu --model gpt2-124m --ranks 1,2,4,8,64,512 --precision fp32,bf16 --plot memory.svg\n"
    "          memory_per_gpu --model gpt2-124m --ranks 8,512 --replicas 2,8 --strategy fsdp,hsdp,hfsdp\n\n"
    "A row whose ranks do not fit into this machine's free memory is measured on one simulated rank, or not at all, "
    "and "
    "says so. Exit code: 0; 1 when measured bytes are not the planned ones, or the run failed; 2 for bad options.";

std::vector<std::string> parts_of(const std::string& text, char between) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(between, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::size_t whole_number(const std::string& text, std::size_t most, const std::string& otherwise) {
  std::size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && value >= 1 && value <= most) return value;
  throw OptionError(otherwise);
}

models::Model perceptron_of(const std::string& name) {
  const std::string otherwise =
      fmt::format("--model mlp:WxD takes a width from 1 to {} and 1 to {} layers, as in mlp:4096x8, not \"{}\"",
                  most_width, most_layers, name);
  const std::vector<std::string> sizes = parts_of(name.substr(name.find(':') + 1), 'x');
  if (sizes.size() != 2) throw OptionError(otherwise);
  const std::size_t width = whole_number(sizes[0], most_width, otherwise);
  return models::perceptron(std::vector<std::size_t>(whole_number(sizes[1], most_layers, otherwise) + 1, width));
}

bool is_file(const std::string& name) { return std::filesystem::path(name).extension() == ".json"; }

models::Model model_of(const std::string& name) {
  if (const examples::Preset* preset = models::find_gpt(name)) return models::gpt(models::shape_of(*preset));
  if (const models::LlamaShape* shape = models::find_llama(name)) return models::llama(*shape, false);
  if (name.rfind("mlp:", 0) == 0) return perceptron_of(name);
  if (is_file(name)) return models::read_units(name);
  std::string known;
  for (const examples::Preset& preset : examples::presets) known += fmt::format("{}, ", preset.name);
  for (const models::LlamaShape& shape : models::llamas) known += fmt::format("{}, ", shape.name);
  throw OptionError(fmt::format("--model takes {}mlp:WxD or a .json file of units, not \"{}\"", known, name));
}

std::vector<NamedPrecision> precisions_of(const std::string& text) {
  std::vector<NamedPrecision> result;
  for (const std::string& name : parts_of(text, ',')) {
    if (name == "fp32") {
      result.push_back({name, tessera::fp32_precision, {}});
    } else if (name == "bf16") {
      result.push_back({name, tessera::bf16_mixed, {}});
    } else if (name == "fp16") {
      result.push_back({name, tessera::fp16_mixed, {}});
    } else {
      throw OptionError(fmt::format("--precision takes fp32, bf16 and fp16 with commas between, not \"{}\"", text));
    }
  }
  return result;
}

std::vector<tessera::Strategy> strategies_of(const std::string& text) {
  std::vector<tessera::Strategy> result;
  for (const std::string& name : parts_of(text, ',')) {
    try {
      result.push_back(tessera::strategy_from_string(name));
    } catch (const tessera::UsageError& error) {
      throw OptionError(fmt::format("--strategy: {}", error.what()));
    }
  }
  return result;
}

std::vector<std::size_t> numbers_of(const std::string& name, const std::string& text) {
  const std::string otherwise =
      fmt::format("{} takes whole numbers from 1 to {} with commas between, not \"{}\"", name, most_ranks, text);
  std::vector<std::size_t> result;
  for (const std::string& part : parts_of(text, ',')) result.push_back(whole_number(part, most_ranks, otherwise));
  return result;
}

// Each number of replicas with each number of ranks that it divides, and there must be one.
std::vector<Mesh> meshes_of(const std::string& ranks, const std::string& replicas) {
  const std::vector<std::size_t> numbers = numbers_of("--ranks", ranks);
  std::vector<std::size_t> unused = numbers_of("--replicas", replicas);
  const std::vector<std::size_t> of_replicas = unused;
  std::vector<Mesh> result;
  for (const std::size_t number : numbers) {
    for (const std::size_t each : of_replicas) {
      if (number % each != 0) continue;
      result.push_back({number, each});
      unused.erase(std::remove(unused.begin(), unused.end(), each), unused.end());
    }
  }
  if (unused.empty()) return result;
  throw OptionError(fmt::format("--replicas {} divides none of --ranks {}", unused.front(), ranks));
}

bool has_replicas(const std::vector<Mesh>& meshes) {
  return std::any_of(meshes.begin(), meshes.end(), [](const Mesh& mesh) { return mesh.replicas > 1; });
}

// Counted by train_gpt's own passes; of other models nobody knows what their layers keep.
void count_activations(Request& request, std::optional<std::size_t> batch) {
  request.activations = "none: the layers' own bytes depend on batch and code";
  if (!batch) return;
  const examples::Preset* preset = models::find_gpt(request.comparison.model_name);
  if (preset == nullptr) throw OptionError("--batch counts the activations of a GPT-2 only: leave it out");
  for (NamedPrecision& precision : request.comparison.precisions) {
    precision.activations = models::gpt_activations(models::shape_of(*preset), precision.precision, *batch);
  }
  request.activations = fmt::format("of {} sequences of {} tokens on each rank", *batch, examples::preset_seq);
}

void require_figure(const Request& request) {
  if (!request.plot || tools::is_figure(request.plot->string())) return;
  throw OptionError(fmt::format("--plot takes a file that ends in .svg or .png, not {}", request.plot->string()));
}

}  // namespace

std::optional<Request> parse_request(int argc, char** argv) {
  Request request;
  Comparison& asked = request.comparison;
  asked.model_name = "gpt2-124m";
  std::string precision = "fp32,bf16", strategies, ranks = "1,2,4,8,64,512", replicas = "1";
  std::optional<std::size_t> batch;
  bool planned_only = false;
  examples::CommandLine line(description, footer);
  line.group("What is compared");
  line.text("--model", asked.model_name, "A GPT-2 or Llama by name, mlp:WxD (D layers, W wide), or a .json file");
  line.text("--strategy", strategies,
            "Strategies, with commas between [ddp,zero1,zero2,fsdp; of several replicas hsdp and hfsdp too]");
  line.text("--precision", precision, "fp32, bf16, fp16, with commas between");
  line.text("--ranks", ranks, "Numbers of ranks, with commas between");
  line.text("--replicas", replicas,
            "Numbers of replicas, with commas between: R x N/R ranks, for each N of --ranks that R divides");
  line.whole("--prefetch", asked.prefetch, {0, 1024}, "Units gathered ahead of the one that computes");
  line.whole("--accumulate", asked.micro_batches, {1, 65536}, "Micro-batches per step");
  line.whole("--batch", batch, {1, 65536}, "Sequences per rank, to count a GPT-2's activations too [not counted]");
  line.whole("--real-ranks", asked.most_real_ranks, {1, 64}, "Up to so many all ranks run; of more, one");
  line.flag("--planned-only", planned_only, "Runs nothing");
  line.group("Files");
  line.path("--csv", request.csv, "One line per row and category, in bytes");
  line.path("--json", request.json, "One object, in bytes");
  line.path("--plot", request.plot, "Stacked bars per strategy; NAME-over-ranks beside it has a line per strategy");
  if (!line.parse(argc, argv)) return std::nullopt;
  require_figure(request);
  asked.measure = !planned_only;
  asked.meshes = meshes_of(ranks, replicas);
  const char* const all = has_replicas(asked.meshes) ? "ddp,zero1,zero2,fsdp,hsdp,hfsdp" : "ddp,zero1,zero2,fsdp";
  asked.strategies = strategies_of(line.given("--strategy") ? strategies : all);
  asked.precisions = precisions_of(precision);
  asked.model = model_of(asked.model_name);
  count_activations(request, batch);
  return request;
}

}  // namespace bench
