// Options, tokens, and the job made of them. Limits on options keep every product here below 2^64.
#include "trainer/gpt/job.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "models/gpt/model.hpp"
#include "tessera/nn/with_element.hpp"
#include "tessera/trainer/fit.hpp"
#include "tessera/trainer/offload_options.hpp"
#include "tessera/trainer/stages.hpp"
#include "trainer/src/fingerprint.hpp"
#include "trainer/src/shipped_data.hpp"

namespace train_gpt {

using tessera::Bytes;

namespace {

constexpr const char* description =
    "Trains a GPT, a decoder-only transformer with GPT-2's architecture, on text with sharded data parallelism. Every "
    "block is a unit of its own; the token table is used twice, as embedding and as output head.";

constexpr const char* footer =
    "Examples: train_gpt --ranks 4 --steps 300 --sample 200\n"
    "          train_gpt --mesh pipeline=2,shard=2,tensor=2 --accumulate 8 (stages, shards and slices)\n\n"
    "A .bin file is token ids as 16-bit numbers, the low byte first, without a header; any other file is text, each "
    "byte a token. The end of the file, a twentieth of it and at most 131,072 tokens, is held out.\n\n"
    "All strategies give the same bits for the same ranks, micro-batches and --accumulate-mode; with --granules any "
    "number of ranks does.\n"
    "Exit code: 0, 1 when the run failed, 2 for bad options.";

constexpr std::size_t most_sample = 1'000'000;
constexpr std::size_t most_tokens = std::size_t{1} << 28;  // in one micro-batch of a rank

// Given holds the command line's values before presets fill the gaps.
struct Given {
  std::optional<std::size_t> layers, dim, heads, seq;
  const Preset* preset = nullptr;
  std::optional<std::string> fp32_units;
};

std::vector<Choice> preset_choices(Given& given) {
  std::vector<Choice> choices;
  for (const Preset& preset : presets) {
    choices.push_back({std::string(preset.name), [&given, &preset] { given.preset = &preset; }});
  }
  return choices;
}

void add_model_options(CommandLine& line, GptOptions& options, Given& given) {
  line.group("Model");
  line.choice(
      "--preset", preset_choices(given),
      fmt::format("Layers, dim and heads of this GPT-2, --seq {}, and a vocabulary of at least {}; options that "
                  "are given win",
                  preset_seq, preset_vocabulary));
  line.whole("--layers", given.layers, {1, 1024}, fmt::format("Transformer blocks [{}]", options.layers));
  line.whole("--dim", given.dim, {1, 1 << 15}, fmt::format("Width, a multiple of --heads [{}]", options.dim));
  line.whole("--heads", given.heads, {1, 1 << 15}, fmt::format("Attention heads [{}]", options.heads));
  line.whole("--seq", given.seq, {1, 1 << 20}, fmt::format("Tokens of a sequence [{}]", options.seq));
  line.real("--dropout", options.dropout, {0, 0.999}, "Of embeddings, attention and the blocks' outputs");
  line.choice("--activation-checkpointing",
              {{"yes", [&options] { options.activation_checkpointing = true; }},
               {"no", [&options] { options.activation_checkpointing = false; }}},
              "Blocks keep only their input, and compute again what backward needs [no]");
  line.text(
      "--fp32-units", given.fp32_units, "PATTERNS",
      "Units that stay in fp32 in mixed precision: shell patterns over embedding, blocks.0 and so on, final, with "
      "commas between");
}

void add_data_options(CommandLine& line, GptOptions& options) {
  line.group("Data and text");
  line.text("--data", options.data, "shakespeare (nine plays, shipped), a text file, or a .bin file of token ids");
  line.whole("--vocabulary", options.vocabulary, {1, 1 << 24},
             "Ids that the model knows [text: 256; .bin files: the largest id + 1]");
  line.whole("--sample", options.sample, {0, most_sample},
             "Bytes of text that the model writes at the end, with a short one at each evaluation [text: 300]");
  line.text("--prompt", options.prompt, "TEXT", "What that text begins with [a line break]");
  line.real("--temperature", options.temperature, {0, 100}, "Of the choice of each byte; 0: always the likeliest");
}

// Options that are given win over the preset, which wins over the defaults.
void resolve(const Given& given, GptOptions& options) {
  if (given.preset != nullptr) {
    options.layers = given.preset->layers;
    options.dim = given.preset->dim;
    options.heads = given.preset->heads;
    options.seq = preset_seq;
    options.least_vocabulary = preset_vocabulary;
  }
  options.layers = given.layers.value_or(options.layers);
  options.dim = given.dim.value_or(options.dim);
  options.heads = given.heads.value_or(options.heads);
  options.seq = given.seq.value_or(options.seq);
  options.fp32_units = split(given.fp32_units.value_or(""));
  std::erase(options.fp32_units, "");
}

void check(GptOptions& options) {
  if (options.run.batch > most_tokens / options.seq) {
    throw OptionError(fmt::format("--batch {} x --seq {} is more than {} tokens in a micro-batch", options.run.batch,
                                  options.seq, most_tokens));
  }
  if (!options.fp32_units.empty() && options.run.precision.parameter == tessera::DType::fp32) {
    options.run.notes.emplace_back("--fp32-units is without effect: everything is fp32");
  }
  if (options.dim % options.heads != 0) {
    throw OptionError(fmt::format("--dim {} is not a multiple of --heads {}", options.dim, options.heads));
  }
}

}  // namespace

std::optional<GptOptions> parse_options(int argc, char** argv) {
  GptOptions options;
  options.run.batch = 4;
  options.run.adamw_learning_rate = 0.003;
  options.run.weight_decay = 0.1;
  options.run.mesh_axes = options.run.mesh_axes | tessera::Axis::context | tessera::Axis::tensor;
  options.run.undecayed = {"*bias", "*.ln_*", "final.*"};
  Given given;
  CommandLine line(description, footer);
  add_model_options(line, options, given);
  add_data_options(line, options);
  line.group("Pipeline");
  add_schedule_options(line, options.schedule, "--accumulate");
  options.run.mesh_axes = options.run.mesh_axes | tessera::Axis::pipeline;
  add_run_options(line, options.run);
  if (!line.parse(argc, argv)) return std::nullopt;
  resolve(given, options);
  options.temperature_given = line.given("--temperature");
  check(options);
  check_run_options(line, options.run);
  check_stages(line, options.run, options.schedule,
               {.layers = options.layers, .recompute = options.activation_checkpointing});
  return options;
}

namespace {

using tessera::TokenFile;
using tessera::TokenFormat;

constexpr double held_out_part = 0.05;
constexpr double most_held_out = 131072;  // tokens: enough to know the loss, and soon evaluated

std::filesystem::path path_of(const std::string& data) {
  if (data == "shakespeare") return shipped_data("shakespeare.txt");
  return data;
}

}  // namespace

TokenData load_tokens(const GptOptions& options) {
  const std::filesystem::path path = path_of(options.data);
  const TokenFormat format = path.extension() == ".bin" ? TokenFormat::words : TokenFormat::bytes;
  const auto file = std::make_shared<TokenFile>(path, format, options.vocabulary);
  const double part = std::min(held_out_part, most_held_out / static_cast<double>(file->size()));
  return {.name = options.data == "shakespeare" ? options.data : path.filename().string(),
          .parts = tessera::split(file, options.seq, part),
          .vocabulary = options.vocabulary.value_or(std::max(file->vocabulary(), options.least_vocabulary))};
}

namespace {

constexpr std::size_t default_epochs = 3;
constexpr std::size_t default_sample = 300;

GptShape shape_of(const GptOptions& options, const TokenData& data) {
  return {.layers = options.layers,
          .dim = options.dim,
          .heads = options.heads,
          .seq = options.seq,
          .vocabulary = data.vocabulary,
          .dropout = static_cast<float>(options.dropout),
          .dropout_seed = options.run.seed,
          .activation_checkpointing = options.activation_checkpointing,
          .blocks_save_inputs = options.run.offload.activations == tessera::MemorySpace::host,
          .fp32_units = options.fp32_units,
          .slices = options.run.mesh_of_job().size(tessera::Axis::tensor),
          .batch = options.run.batch,
          .contexts = options.run.mesh_of_job().size(tessera::Axis::context)};
}

}  // namespace

GptShape shape_on(const tessera::World& world, const Job& job) {
  const tessera::plan::MeshShape mesh = job.options.run.mesh_of_job();
  const tessera::plan::Coordinates place = mesh.place_of(static_cast<std::size_t>(world.rank()));
  GptShape shape = job.shape;
  shape.slice = place[static_cast<std::size_t>(tessera::Axis::tensor)];
  shape.context = place[static_cast<std::size_t>(tessera::Axis::context)];
  return shape;
}

namespace {

void require_equal_parts(const GptShape& shape) {
  if (shape.heads % shape.slices != 0) {
    throw OptionError(
        fmt::format("--mesh: {} ranks along tensor do not divide the {} of --heads", shape.slices, shape.heads));
  }
  if (shape.heads / shape.slices % shape.contexts != 0) {
    throw OptionError(fmt::format("--mesh: {} ranks along context do not divide the {} heads{}", shape.contexts,
                                  shape.heads / shape.slices, shape.slices > 1 ? " of a slice" : " of --heads"));
  }
  if (shape.seq % shape.contexts != 0) {
    throw OptionError(
        fmt::format("--mesh: {} ranks along context do not divide the {} of --seq", shape.contexts, shape.seq));
  }
  const std::size_t each = (shape.vocabulary + shape.slices - 1) / shape.slices;
  if (each * (shape.slices - 1) < shape.vocabulary) return;
  throw OptionError(fmt::format("--mesh: {} ids of --vocabulary are too few for {} ranks along tensor",
                                shape.vocabulary, shape.slices));
}

// A pattern that matches nothing is a mistake.
void require_units(const GptShape& shape) {
  const std::vector<std::string> names = unit_names(shape);
  for (const std::string& pattern : shape.fp32_units) {
    GptShape alone = shape;
    alone.fp32_units = {pattern};
    const bool used =
        std::any_of(names.begin(), names.end(), [&](const auto& name) { return stays_in_fp32(alone, name); });
    if (used) continue;
    throw OptionError(fmt::format("--fp32-units: \"{}\" matches no unit; there are {}, {} to {} and {}", pattern,
                                  embedding_name, block_name(0), block_name(shape.layers - 1), final_name));
  }
}

// A prompt's bytes are tokens.
void require_known_prompt(const GptOptions& options, const TokenData& data) {
  for (const char c : options.prompt.value_or(usual_prompt)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < data.vocabulary) continue;
    throw OptionError(fmt::format(
        "--prompt: its byte {} is beyond the {} ids of --vocabulary; choose another prompt, or a larger vocabulary",
        byte, data.vocabulary));
  }
}

void note_unread_text(GptOptions& options) {
  for (const auto& [name, given] :
       {std::pair("--prompt", options.prompt.has_value()), std::pair("--temperature", options.temperature_given)}) {
    if (given) options.run.notes.push_back(fmt::format("{} is without effect: no text is written", name));
  }
}

std::size_t sample_length(const GptOptions& options, const TokenData& data) {
  const std::size_t sample = options.sample.value_or(data.is_text() ? default_sample : 0);
  if (sample == 0 || data.is_text()) return sample;
  throw OptionError(
      fmt::format("--sample {}: {} has token ids, and this program cannot turn them into text", sample, data.name));
}

Bytes activation_bytes(const Job& job) {
  return tessera::nn::with_element(job.options.run.precision, [&](auto element) {
    return Gpt<decltype(element)>::planned_activation_bytes(job.shape, job.options.run.batch,
                                                            device_kind(job.options.run));
  });
}

}  // namespace

Bytes batch_bytes(const Job& job) {
  constexpr std::size_t slots = batches_ahead + 1;
  constexpr std::size_t per_token = 2 * sizeof(std::int32_t) + sizeof(float);
  return Bytes(slots * per_token * job.shape.seq * job.options.run.samples_per_rank());
}

Job make_job(const GptOptions& options) {
  const RunOptions& run = options.run;
  require_data_is_no_output(run, path_of(options.data));
  check_offloaded_activations(run.offload, options.activation_checkpointing);
  Job job{.options = options, .data = load_tokens(options)};
  if (needs_fingerprint(run)) job.options.run.data_fingerprint = fingerprint_of(path_of(options.data));
  const std::size_t samples = job.data.parts.training.size();
  job.shape = shape_of(options, job.data);
  require_equal_parts(job.shape);
  require_units(job.shape);
  require_enough_samples(run, job.data.name, samples);
  job.length = run_length(run, steps_per_epoch(run, samples), default_epochs);
  job.sample = sample_length(options, job.data);
  if (job.sample > 0) {
    require_known_prompt(options, job.data);
  } else {
    note_unread_text(job.options);
  }
  const bool flows = stages_of(options.run) > 1;  // its stages say what they need
  job.sharding =
      fitting_options(run, {.activations = flows ? Bytes(0) : activation_bytes(job),
                            .batches = batch_bytes(job),
                            .smaller = "--batch, --seq, --layers or --dim, or --activation-checkpointing yes"});
  if (!flows) job.sharding.program = Gpt<float>::program(job.shape);
  return job;
}

}  // namespace train_gpt
