// One variant per source of shapes.
#include "request.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>

#include "models/units_file.hpp"
#include "tessera/base/error.hpp"
#include "tessera/nn/muon.hpp"
#include "tessera/optim/adamw.hpp"
#include "tessera/optim/adamw8bit.hpp"
#include "tessera/optim/sgd.hpp"
#include "tessera/shard/whole_tensors.hpp"
#include "tessera/trainer/masters_option.hpp"
#include "tessera/trainer/offload_options.hpp"
#include "tessera/trainer/travel_options.hpp"
#include "text.hpp"

namespace tools {

using tessera::AccumulationMode;
using tessera::Bytes;
using tessera::Strategy;

Subject Subject::gpt(std::string name, const models::GptShape& shape) { return {std::move(name), shape}; }

Subject Subject::vision(const models::VisionShape& shape) {
  return {fmt::format("{}, images of {} x {}", to_string(shape.kind), shape.image.height, shape.image.width), shape};
}

Subject Subject::llama(const models::LlamaShape& shape) { return {std::string(shape.name), shape}; }

Subject Subject::perceptron(const std::vector<std::size_t>& widths) {
  return {fmt::format("mlp {}", fmt::join(widths, "x")), models::perceptron(widths)};
}

Subject Subject::file(const std::filesystem::path& path) {
  return {path.filename().string(), models::read_units(path)};
}

std::size_t Subject::seq() const {
  const auto* const shape = std::get_if<models::GptShape>(&shape_);
  return shape == nullptr ? 0 : shape->seq;
}

bool Subject::saves(const Setting& setting) const {
  return sees_images() || (is<models::GptShape>() && setting.activation_checkpointing);
}

models::VisionShape Subject::vision_shape(const Setting& setting) const {
  models::VisionShape shape = std::get<models::VisionShape>(shape_);
  shape.stages_save = setting.options.offload.activations == tessera::MemorySpace::host;
  return shape;
}

models::GptShape Subject::gpt_shape(const Setting& setting) const {
  models::GptShape shape = std::get<models::GptShape>(shape_);
  shape.activation_checkpointing = setting.activation_checkpointing;
  if (setting.options.mesh) shape.slices = setting.options.mesh->size(tessera::Axis::tensor);
  shape.contexts = setting.contexts();
  shape.batch = setting.batch;
  shape.blocks_save_inputs = setting.options.offload.activations == tessera::MemorySpace::host;
  return shape;
}

models::Model Subject::model(const Setting& setting) const {
  if (is<models::GptShape>()) return models::gpt(gpt_shape(setting), setting.options.precision, setting.batch);
  if (sees_images()) return models::vision(vision_shape(setting), setting.options.precision, setting.batch);
  if (const auto* shape = std::get_if<models::LlamaShape>(&shape_)) {
    return models::llama(*shape, setting.activation_checkpointing);
  }
  return std::get<models::Model>(shape_);
}

Bytes Subject::activations(const Setting& setting) const {
  if (!counts_activations()) return Bytes(0);
  if (sees_images()) {
    return models::vision_activations(vision_shape(setting), setting.options.precision, setting.batch);
  }
  return models::gpt_activations(gpt_shape(setting), setting.options.precision, setting.batch);
}

std::map<WindowKey, Work> Subject::counted_work(const Setting& setting) const {
  std::map<WindowKey, Work> result;
  if (!sees_images()) return result;
  for (const auto& [use, counted] :
       models::vision_work(vision_shape(setting), setting.options.precision, setting.batch)) {
    result.emplace(WindowKey{use.unit, use.kind, 0}, work_of(counted));  // a chain: one of each kind
  }
  return result;
}

namespace {

std::unique_ptr<tessera::Optimizer> make_optimizer(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::adamw: return tessera::AdamW{};
    case OptimizerKind::adamw8bit: return tessera::AdamW8bit{};
    case OptimizerKind::sgd: return tessera::Sgd{.momentum = 0.9f};
    case OptimizerKind::muon: return tessera::nn::Muon{};
  }
  throw tessera::InternalError("an optimizer of no kind");
}

}  // namespace

void note_whole_tensors(std::vector<tessera::plan::UnitSpec>& units, const Setting& setting) {
  const std::unique_ptr<tessera::Optimizer> optimizer = make_optimizer(setting.optimizer);
  for (tessera::plan::UnitSpec& unit : units) {
    tessera::note_whole_tensors(unit, optimizer->whole_tensors(), setting.device);
  }
}

std::vector<tessera::plan::RankRole> Subject::stages(const Setting& setting) const {
  const tessera::plan::PlanOptions& options = setting.options;
  const tessera::FullyShardOptions sharding{.strategy = options.strategy,
                                            .mesh = options.mesh,
                                            .precision = options.precision,
                                            .prefetch = options.prefetch,
                                            .reshard_after_forward = options.reshard_after_forward,
                                            .overlap_reduction = options.overlap_reduction,
                                            .bucket_cap = options.bucket_cap,
                                            .offload = options.offload};
  return models::gpt_stages(gpt_shape(setting),
                            {.batch = setting.batch, .kind = setting.schedule.kind, .shape = setting.schedule_shape()},
                            sharding, [&] { return make_optimizer(setting.optimizer); });
}

tessera::plan::CompileInput compile_input(const Subject& subject, const Setting& setting,
                                          const std::vector<tessera::plan::StateSpec>& optimizer_states) {
  models::Model model = subject.model(setting);
  tessera::plan::CompileInput input{
      std::move(model.units), {std::move(model.program)}, setting.options, optimizer_states};
  input.options.activations = subject.activations(setting);
  note_whole_tensors(input.units, setting);
  return input;
}

namespace {

constexpr std::size_t most_ranks = std::size_t{1} << 20;
constexpr std::size_t most_micro_batches = 65536;
constexpr std::size_t most_prefetch = 1024;
constexpr std::size_t most_outer_steps = 1'000'000'000;
constexpr std::size_t most_width = std::size_t{1} << 24;
constexpr std::size_t most_layers = 4096;
constexpr std::size_t most_bucket_bytes = std::size_t{1} << 40;
constexpr std::size_t most_planned_tokens = std::size_t{1} << 28;  // in one micro-batch of a rank
constexpr double most_parameters = 1e18;
constexpr std::size_t usual_image_size = 224;  // ImageNet's
constexpr std::size_t usual_classes = 1000;

constexpr const char* description =
    "Compiles the plan of a training step, verifies it, and prints the bytes that each rank would hold and send. Needs "
    "no device and moves no data, so that any model and any --world can be asked for.";
constexpr const char* footer =
    "Examples:\n"
    "  tessera plan --model gpt2-1558m --world 64 --precision bf16 --batch 4\n"
    "  tessera plan --model llama-70b --world 512 --precision bf16 --compare\n"
    "  tessera plan --model gpt2-1558m --world 64 --precision bf16 --fit 80GB\n"
    "  tessera plan --model llama-7b --world 2 --precision bf16 --fit 48GB --host-memory 16GB --offload-to "
    "disk:/scratch\n"
    "  tessera plan --model llama-70b --world 512 --replicas 8 --strategy hsdp --precision bf16\n"
    "  tessera plan --model llama-7b --world 512 --precision bf16 --batch 2 --time --machine h100x8 --compare\n"
    "  tessera plan --model resnet50 --batch 32 --world 8 --fit 16GB\n"
    "  tessera plan --model gpt2-1558m --mesh pipeline=4,shard=2 --micro-batches 16 --precision bf16\n"
    "  tessera plan --params 7.5e9 --world 64\n"
    "  tessera plan --mlp 64x128x128x10 --world 4 --draw\n\n"
    "A file of --units is JSON: {\"units\": [{\"name\": \"head\", \"precision\": \"fp32\", \"parameters\": [{\"name\": "
    "\"weight\", \"shape\": [10, 64], \"frozen\": false}]}], \"program\": {\"micro_batch\": [\"forward head\", "
    "\"backward head\"], \"evaluation\": [\"evaluate head\"]}}; precision, frozen and program may be left out, and a "
    "unit may have "
    "prefetch and reshard_after_forward. \"resume forward head\" goes on with a window behind those inside it.\n\n"
    "peak is the size of the arena that a rank allocates; live is the most of it that is in use at once. Activations "
    "are counted for GPTs and networks on images, by the trainers' own passes.\n"
    "Exit code: 0; 1 when the plan cannot be made, is not sound, or nothing fits; 2 for bad options.";

std::vector<std::size_t> widths(const std::string& name, const std::string& text) {
  std::vector<std::size_t> result;
  for (const std::string& part : tessera::trainer::split(text, 'x')) {
    try {
      result.push_back(whole_number(name, part, {1, most_width}));
    } catch (const OptionError&) {
      throw OptionError(fmt::format("{} takes widths from 1 to {} with x between them, as in 64x128x10, not \"{}\"",
                                    name, most_width, text));
    }
  }
  if (result.size() >= 2 && result.size() <= most_layers + 1) return result;
  throw OptionError(
      fmt::format("{} takes 2 to {} widths, not the {} of \"{}\"", name, most_layers + 1, result.size(), text));
}

double parameter_number(const std::string& name, const std::string& text) {
  const std::optional<double> value = tessera::trainer::number_in<double>(text);
  if (value && *value >= 1.0 && *value <= most_parameters) return *value;
  throw OptionError(
      fmt::format("{} takes a number from 1 to {:g}, as in 7.5e9, not \"{}\"", name, most_parameters, text));
}

// ModelOptions are the command line's options of a model.
struct ModelOptions {
  std::optional<std::string> name, units;
  std::optional<std::vector<std::size_t>> widths;
  std::optional<std::size_t> layers, dim, heads, seq, vocabulary, batch, image_size, channels, classes, width;
  bool synchronised_norms = false;
};

std::string model_names() {
  std::string names;
  for (const models::Preset& preset : models::presets) names += std::string(preset.name) + "|";
  for (const models::LlamaShape& shape : models::llamas) names += std::string(shape.name) + "|";
  for (const models::VisionModelKind kind : models::vision_models) names += std::string(to_string(kind)) + "|";
  names.pop_back();
  return names;
}

void add_model_options(CommandLine& line, ModelOptions& model, PlanRequest& request) {
  line.group("Model");
  line.text("--model", model.name, model_names(), "A model by name; the options below change a GPT-2");
  line.whole("--layers", model.layers, {1, 1024}, "Blocks of a GPT; without --model also --dim and --heads");
  line.whole("--dim", model.dim, {1, 1 << 15}, "Its width, a multiple of --heads");
  line.whole("--heads", model.heads, {1, 1 << 15}, "Its attention heads");
  line.whole("--seq", model.seq, {1, 1 << 20}, fmt::format("Tokens of a sequence [{}]", models::preset_seq));
  line.whole("--vocabulary", model.vocabulary, {1, 1 << 24},
             fmt::format("Ids that it knows [{}]", models::preset_vocabulary));
  line.whole("--image-size", model.image_size, {4, 4096},
             fmt::format("Height and width of the images that a network of train_vision sees [{}]", usual_image_size));
  line.flag("--sync-batch-norm", model.synchronised_norms,
            "Batch norms of resnet18 and resnet50 take their moments from all ranks' images");
  line.whole("--channels", model.channels, {1, 4096}, "Channels of these images [3]");
  line.whole("--width", model.width, {1, 4096},
             "Channels of its first stage, or of a transformer's tokens, instead of the published ones");
  line.whole("--classes", model.classes, {1, 1 << 24}, fmt::format("Classes that it tells apart [{}]", usual_classes));
  line.take({"--mlp", "WxW[xW...]", "Widths of a perceptron: 64x128x10 has two layers. Each layer is a unit"},
            [&](const std::string& text) { model.widths = widths("--mlp", text); });
  line.text("--units", model.units, "FILE", "A model of your own: units with names and shapes, see below");
  line.take({"--params", "N", "A number of parameters alone: bytes by formula, the ZeRO paper's and ours"},
            [&](const std::string& text) { request.parameters = parameter_number("--params", text); });
  line.choice<OptimizerKind>(
      "--optimizer", request.setting.optimizer,
      {{"adamw", OptimizerKind::adamw},
       {"adamw8bit", OptimizerKind::adamw8bit},
       {"sgd", OptimizerKind::sgd},
       {"muon", OptimizerKind::muon}},
      "adamw keeps two fp32 states per parameter, adamw8bit the same in 8 bits with scales, sgd "
      "(with momentum) one, muon one of matrices and two of the rest, and each rank works on whole matrices [adamw]");
}

void add_sharding_options(CommandLine& line, PlanRequest& request, tessera::DType& masters) {
  tessera::plan::PlanOptions& options = request.setting.options;
  line.group("Ranks and sharding");
  line.whole("--world", options.ranks, {1, most_ranks}, "Ranks");
  line.whole("--replicas", options.replicas, {1, most_ranks},
             "R of the mesh of R replicas by N/R ranks, with any strategy: gradients are summed inside each replica, "
             "then across them");
  tessera::trainer::add_mesh_option(line, options.mesh,
                                    tessera::Axis::pipeline | tessera::Axis::replicate | tessera::Axis::shard |
                                        tessera::Axis::context | tessera::Axis::tensor);
  tessera::trainer::add_schedule_options(line, request.setting.schedule, "--micro-batches");
  line.whole("--outer-every", options.outer_every, {1, most_outer_steps},
             "Replicas train each by themselves and meet after every so many steps (DiLoCo) [they are summed in every "
             "step]");
  line.whole("--outer-fragments", options.outer_fragments, {1, most_outer_steps},
             "Parts of the model that take turns in meeting");
  tessera::trainer::add_strategy_option(line, options.strategy);
  line.choice<tessera::Precision>(
      "--precision", options.precision,
      {{"fp32", tessera::fp32_precision}, {"bf16", tessera::bf16_mixed}, {"fp16", tessera::fp16_mixed}},
      "Of parameters and gradients in the windows and on the wire [fp32]");
  tessera::trainer::add_masters_option(line, masters);
  line.whole("--prefetch", options.prefetch, {0, most_prefetch}, "Units gathered ahead of the one that computes");
  line.choice<tessera::Resharding>(
      "--reshard-after-forward", options.reshard_after_forward,
      {{"yes", true}, {"no", false}, {"group", tessera::Axis::shard}},
      "Gather units again for the backward pass [yes]; no: keep them whole until then; group: keep a replica's share, "
      "and gather them again inside each replica");
  line.yes_or_no("--overlap-reduction", options.overlap_reduction,
                 "Reduce a unit's gradient beside the next unit's backward pass, in a second slot");
  line.take({"--bucket-cap", "N",
             "Gradients of at most so many bytes are reduced in one operation; 0: each unit's alone [1 MiB; fsdp, "
             "hsdp, hfsdp: 0]"},
            [&](const std::string& text) {
              options.bucket_cap = tessera::Bytes(whole_number("--bucket-cap", text, {0, most_bucket_bytes}));
            });
  tessera::trainer::add_offload_options(line, options.offload, request.disk);
}

void add_step_options(CommandLine& line, ModelOptions& model, Setting& setting) {
  line.group("Step");
  line.whole("--batch", model.batch, {1, std::size_t{1} << 24},
             "Sequences or images of a rank and micro-batch, for activations [1]");
  line.yes_or_no("--activation-checkpointing", setting.activation_checkpointing,
                 "Blocks keep only their input, and compute again what backward needs");
  line.whole("--micro-batches", setting.options.micro_batches, {1, most_micro_batches}, "Micro-batches per step");
  line.whole("--granules", setting.options.granules, {1, most_micro_batches},
             "Granules per step, dealt to the ranks as micro-batches: the same bits on any number of ranks. --batch is "
             "then a granule's [none]");
  line.choice<AccumulationMode>("--accumulate-mode", setting.options.accumulation,
                                {{"local", AccumulationMode::local}, {"reduced", AccumulationMode::reduced}},
                                "Micro-batches add up on the rank and are reduced once, or each is reduced "
                                "[ddp, zero1: local; others: reduced]");
}

void add_question_options(CommandLine& line, PlanRequest& request) {
  line.group("Question");
  line.flag("--compare", request.compare, "All strategies side by side; hsdp and hfsdp with several --replicas");
  line.take({"--fit", "SIZE",
             "Searches strategy, prefetch, resharding, checkpointing and batch, as far as they are not given, for what "
             "fits into so much memory of a rank: 80GB, 80GiB. Without --replicas, hsdp and hfsdp are tried with every "
             "number of replicas from 2 to N/2 that divides the N ranks, and the one that sends the fewest bytes is "
             "shown for each: which of them has replicas of whole hosts is for you to see. Where nothing fits, states "
             "and masters of as few units as will do move (--offload) to the host's memory, to be updated there if "
             "there is no room for slots, or to the disk: see --offload-to and --host-memory"},
            [&](const std::string& text) { request.fit = size_in_bytes("--fit", text); });
  line.flag(
      "--meshes", request.freedom.meshes,
      "With --fit: also a GPT's slices along tensor and parts of sequences of 2,048 tokens or more along context, both "
      "together among 2, 4 and 8 ranks, and as many stages along pipeline as there are micro-batches or fewer (1f1b, "
      "without recomputation), the rest of the ranks sharding. Nothing moves to the host's memory then");
  line.take({"--host-memory", "SIZE",
             "With --fit: the host's memory of a rank. What has to move and is more than that goes to the disk with "
             "--offload-to disk:FOLDER, which without --host-memory takes all that moves [no limit]"},
            [&](const std::string& text) { request.host_memory = size_in_bytes("--host-memory", text); });
  add_time_options(line, request.time);
  line.group("Output");
  line.flag("--draw", request.draw, "Prints the schedule of every segment too");
  line.flag("--json", request.json, "Prints one JSON object instead of text, sizes in bytes");
}

void refuse_together(const CommandLine& line, const std::vector<std::string>& names) {
  std::string first;
  for (const std::string& name : names) {
    if (!line.given(name)) continue;
    if (!first.empty()) throw OptionError(fmt::format("{} and {} exclude each other", first, name));
    first = name;
  }
}

// Options that say nothing about `what` were not meant.
void refuse_with(const CommandLine& line, const std::string& what, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (line.given(name)) throw OptionError(fmt::format("{} is without effect with {}", name, what));
  }
}

const std::vector<std::string> of_vision = {"--image-size", "--channels", "--classes", "--width", "--sync-batch-norm"};
const std::vector<std::string> of_gpt = {"--layers", "--dim", "--heads", "--vocabulary"};

// The shape of a preset or of a custom model, with what is given instead.
models::GptShape gpt_shape(const ModelOptions& given, const models::Preset* preset) {
  if (!preset && !(given.layers && given.dim && given.heads)) {
    throw OptionError("a GPT of your own takes all of --layers, --dim and --heads");
  }
  const models::Preset own{"", given.layers.value_or(0), given.dim.value_or(0), given.heads.value_or(0)};
  models::GptShape shape = models::shape_of(preset ? *preset : own);
  shape.layers = given.layers.value_or(shape.layers);
  shape.dim = given.dim.value_or(shape.dim);
  shape.heads = given.heads.value_or(shape.heads);
  shape.seq = given.seq.value_or(shape.seq);
  shape.vocabulary = given.vocabulary.value_or(shape.vocabulary);
  if (shape.dim % shape.heads != 0) {
    throw OptionError(fmt::format("--dim {} is not a multiple of --heads {}", shape.dim, shape.heads));
  }
  if (given.batch.value_or(1) > most_planned_tokens / shape.seq) {
    throw OptionError(fmt::format("--batch {} x --seq {} is more than {} tokens in a micro-batch", *given.batch,
                                  shape.seq, most_planned_tokens));
  }
  return shape;
}

Subject vision_subject(const CommandLine& line, const ModelOptions& given, const models::VisionShape& shape) {
  refuse_with(line, *given.name, of_gpt);
  refuse_with(line, *given.name, {"--seq", "--activation-checkpointing"});
  if (!models::has_batch_norms(shape.kind)) refuse_with(line, *given.name, {"--sync-batch-norm"});
  const std::size_t batch = given.batch.value_or(1);
  if (!models::can_be_counted(shape, batch)) {
    throw OptionError(fmt::format(
        "--batch {} x {} x {} pixels x {} channels is more than {} numbers in a micro-batch: take less of --batch, "
        "--image-size, --width or --channels",
        batch, shape.image.height, shape.image.width, std::max(shape.width, shape.image.channels),
        models::most_image_numbers));
  }
  models::VisionShape chosen = shape;
  chosen.synchronised_norms = given.synchronised_norms;
  chosen.granule_norms = line.given("--granules");
  return Subject::vision(chosen);
}

Subject named_subject(const CommandLine& line, const ModelOptions& given) {
  const models::VisionChoice choice{.side = given.image_size.value_or(usual_image_size),
                                    .channels = given.channels.value_or(3),
                                    .classes = given.classes.value_or(usual_classes),
                                    .width = given.width.value_or(0)};
  if (const auto shape = models::find_vision(*given.name, choice)) {
    return vision_subject(line, given, *shape);
  }
  refuse_with(line, *given.name, of_vision);
  if (const models::Preset* preset = models::find_gpt(*given.name)) {
    return Subject::gpt(*given.name, gpt_shape(given, preset));
  }
  if (const models::LlamaShape* llama = models::find_llama(*given.name)) {
    refuse_with(line, *given.name, of_gpt);
    if (!line.given("--time")) refuse_with(line, *given.name + " without --time", {"--seq", "--batch"});
    return Subject::llama(*llama);
  }
  throw OptionError(fmt::format("--model takes {}, not \"{}\"", model_names(), *given.name));
}

Subject subject_of(const CommandLine& line, const ModelOptions& given) {
  if (given.name) return named_subject(line, given);
  if (given.widths || given.units) {
    const std::string source = given.widths ? "--mlp" : "--units";
    refuse_with(line, source, of_gpt);
    refuse_with(line, source, {"--activation-checkpointing"});
    refuse_with(line, source, of_vision);
    if (!line.given("--time")) refuse_with(line, source, {"--seq", "--batch"});
    if (given.widths) refuse_with(line, source, {"--seq"});
    return given.widths ? Subject::perceptron(*given.widths) : Subject::file(*given.units);
  }
  if (given.layers || given.dim || given.heads) {
    refuse_with(line, "a GPT of your own", of_vision);
    const models::GptShape shape = gpt_shape(given, nullptr);
    return Subject::gpt(fmt::format("GPT, {} layers of {} with {} heads", shape.layers, shape.dim, shape.heads), shape);
  }
  throw OptionError(
      "a model is missing: --model NAME, --layers with --dim and --heads, --mlp WIDTHS, --units FILE, or --params N");
}

void check_parameters_alone(const CommandLine& line) {
  refuse_with(line, "--params", of_vision);
  refuse_with(line, "--params", of_gpt);
  refuse_with(line, "--params",
              tessera::trainer::split(
                  "--seq --batch --activation-checkpointing --strategy --precision --masters --prefetch "
                  "--reshard-after-forward --overlap-reduction --bucket-cap --gather --wire --offload --offload-to "
                  "--offload-units --micro-batches --granules --accumulate-mode --outer-every --outer-fragments "
                  "--compare --fit --meshes --host-memory --draw --machine --time",
                  ' '));
}

void take_mesh(const CommandLine& line, tessera::plan::PlanOptions& options) {
  if (!options.mesh) return;
  const tessera::plan::MeshShape& mesh = *options.mesh;
  if (!line.given("--world")) options.ranks = mesh.size();
  options.replicas = mesh.size(tessera::Axis::replicate);
  if (mesh.size() == options.ranks) return;
  throw OptionError(fmt::format("--mesh {} is of {}, and --world of {}", mesh.text(),
                                counted(mesh.size(), "rank", "ranks"), counted(options.ranks, "rank", "ranks")));
}

void check_cuts(const PlanRequest& request) {
  if (!request.setting.options.mesh) return;
  const Subject& subject = *request.subject;
  const std::size_t slices = request.setting.options.mesh->size(tessera::Axis::tensor);
  const std::size_t contexts = request.setting.contexts();
  if (slices * contexts == 1) return;
  if (contexts > 1 && request.setting.options.granules > 0)
    throw OptionError("--granules: parts of sequences change last bits: leave --granules or context out");
  if (!subject.has_slices()) {
    throw OptionError(slices > 1 ? "--mesh: only a GPT's layers have slices along tensor here"
                                 : "--mesh: only a GPT's sequences have parts along context here");
  }
  if (subject.heads() % slices != 0) {
    throw OptionError(
        fmt::format("--mesh: {} ranks along tensor do not divide the model's {} heads", slices, subject.heads()));
  }
  if (subject.heads() / slices % contexts != 0) {
    throw OptionError(fmt::format("--mesh: {} ranks along context do not divide the {} heads{}", contexts,
                                  subject.heads() / slices, slices > 1 ? " of a slice" : " of the model"));
  }
  if (subject.seq() % contexts != 0) {
    throw OptionError(
        fmt::format("--mesh: {} ranks along context do not divide sequences of {} tokens", contexts, subject.seq()));
  }
}

// A pipeline is planned as train_gpt trains it.
void check_stages(const CommandLine& line, const PlanRequest& request) {
  const Setting& setting = request.setting;
  const bool has_stages = setting.stages() > 1;
  if (has_stages && !request.subject->has_stages())
    throw OptionError("--mesh: only a GPT is cut into stages along pipeline here");
  tessera::trainer::check_schedule(line, setting.schedule,
                                   {.stages = setting.stages(),
                                    .micro_batches = setting.options.micro_batches,
                                    .layers = has_stages ? request.subject->layers() : 0,
                                    .recompute = setting.activation_checkpointing},
                                   "--micro-batches");
  if (!has_stages) return;
  if (setting.options.offload.activations != tessera::MemorySpace::device)
    throw OptionError("--offload activations is not possible with stages along pipeline: leave them on the device");
  if (setting.options.offload.ahead == tessera::Ahead::final)
    throw OptionError("--offload ahead-for-good is not possible with stages along pipeline: take ahead");
  if (line.given("--wire") && setting.options.micro_batches > 1) {
    throw OptionError(
        "--wire is without effect: gradients of a pipeline's micro-batches add up in fp32 before they travel; leave it "
        "out");
  }
  refuse_with(
      line, "stages along pipeline",
      {"--granules", "--outer-every", "--accumulate-mode", "--compare", "--draw", "--profile", "--slow", "--jitter"});
}

void check_meshes(const CommandLine& line, const PlanRequest& request) {
  if (!request.freedom.meshes) return;
  if (!request.fit) throw OptionError("--meshes is for what --fit tries: it needs --fit");
  if (!request.subject->has_stages()) throw OptionError("--meshes: only a GPT is cut into slices and stages here");
  refuse_with(line, "--meshes",
              {"--replicas", "--granules", "--outer-every", "--accumulate-mode", "--offload", "--offload-to",
               "--host-memory", "--profile", "--slow", "--draw"});
  const Strategy strategy = request.setting.options.strategy;
  if (is_hybrid(strategy)) {
    throw OptionError(
        fmt::format("--meshes tries one replica, with which {} is fsdp: take --strategy fsdp, or --fit "
                    "without --meshes",
                    to_string(strategy)));
  }
}

void require_mesh(const tessera::plan::PlanOptions& options) {
  if (options.ranks % options.replicas == 0) return;
  throw OptionError(fmt::format("--replicas {} does not divide the {} of --world: choose a divisor", options.replicas,
                                counted(options.ranks, "rank", "ranks")));
}

// Refuses in the command line's words what compile() would refuse in the library's.
void check_outer_steps(const CommandLine& line, const tessera::plan::PlanOptions& options) {
  if (options.outer_every == 0) {
    if (line.given("--outer-fragments")) throw OptionError("--outer-fragments needs --outer-every");
    return;
  }
  if (options.replicas == 1) throw OptionError("--outer-every is for several replicas: add --replicas");
  if (options.strategy == Strategy::hfsdp) {
    throw OptionError("--outer-every: hfsdp divides the optimizer's states among replicas that then differ; use hsdp");
  }
}

// Scripts give all options of a setting, so those that another one of it leaves nothing to are told and not refused.
void note_unread(const CommandLine& line, const PlanRequest& request) {
  const auto note = [&](const char* name, const std::string& why) {
    if (line.given(name)) fmt::print(stderr, "tessera: {} is without effect: {}\n", name, why);
  };
  const tessera::plan::PlanOptions& options = request.setting.options;
  const bool is_one = line.given("--strategy") || !(request.compare || request.fit);
  const bool has_groups = options.replicas > 1 && !(is_one && options.strategy != Strategy::fsdp);
  if (is_one && options.strategy.sharding.parameters.empty()) {
    const std::string why = fmt::format("strategy {} keeps every unit whole", to_string(options.strategy));
    for (const char* name : {"--prefetch", "--reshard-after-forward"}) note(name, why);
  } else if (options.reshard_after_forward == tessera::Axis::shard && !has_groups) {
    note("--reshard-after-forward", "group is yes here; it is for fsdp on several replicas (--replicas)");
  }
  if (options.micro_batches == 1 && options.granules == 0)
    note("--accumulate-mode", "a step has one micro-batch; --micro-batches makes several");
  if (!request.time.asked && request.setting.optimizer != OptimizerKind::muon)
    note("--machine", "without --time it says whose memory muon's products take, and the optimizer is another");
}

// This is the length of a Llama's sequences where none is said. Layers and files have samples.
constexpr std::size_t llama_seq = 4096;

std::size_t default_seq(const Subject& subject) {
  if (subject.seq() > 0) return subject.seq();
  return subject.has_tokens() ? llama_seq : 0;
}

Freedom freedom_of(const CommandLine& line, bool meshes) {
  return {.strategy = !line.given("--strategy"),
          .replicas = !line.given("--replicas"),
          .prefetch = !line.given("--prefetch"),
          .reshard = !line.given("--reshard-after-forward"),
          .checkpointing = !line.given("--activation-checkpointing"),
          .batch = !line.given("--batch"),
          .offload = !line.given("--offload"),
          .meshes = meshes};
}

}  // namespace

std::optional<PlanRequest> parse_plan_request(std::vector<std::string> arguments) {
  PlanRequest request;
  ModelOptions model;
  tessera::DType masters = tessera::DType::fp32;
  tessera::trainer::TravelOptions travel;
  CommandLine line(description, footer, "tessera plan");
  add_model_options(line, model, request);
  add_sharding_options(line, request, masters);
  tessera::trainer::add_travel_options(line, travel);
  add_step_options(line, model, request.setting);
  add_question_options(line, request);
  if (!line.parse(std::move(arguments))) return std::nullopt;
  refuse_together(line, {"--model", "--mlp", "--units", "--params"});
  refuse_together(line, {"--draw", "--json"});
  refuse_together(line, {"--compare", "--fit"});
  refuse_together(line, {"--granules", "--micro-batches"});
  refuse_together(line, {"--granules", "--accumulate-mode"});
  refuse_together(line, {"--granules", "--sync-batch-norm"});
  refuse_together(line, {"--compare", "--strategy"});
  if (request.compare && request.time.asked)
    refuse_with(line, "--compare and --time, which try several", {"--prefetch"});
  for (const char* name : {"--replicas", "--fit", "--params", "--plot"}) refuse_together(line, {"--mesh", name});
  if (request.time.asked) refuse_together(line, {"--mesh", "--compare"});
  take_mesh(line, request.setting.options);
  require_mesh(request.setting.options);
  check_outer_steps(line, request.setting.options);
  tessera::Precision& precision = request.setting.options.precision;
  precision = tessera::trainer::with_masters(with_travel(precision, travel), masters);
  if (request.host_memory && (!request.fit || line.given("--offload"))) {
    throw OptionError("--host-memory is for what --fit finds to move: it needs --fit, and no --offload");
  }
  check_offload_options(line, request.setting.options.offload, request.disk, precision, request.fit.has_value());
  check_time_options(line, request.time, model.units);
  request.setting.batch = model.batch.value_or(1);
  request.freedom = freedom_of(line, request.freedom.meshes);
  if (request.parameters) {
    check_parameters_alone(line);
  } else {
    request.subject = subject_of(line, model);
    check_cuts(request);
    check_stages(line, request);
    check_meshes(line, request);
    if (line.given("--mlp") && request.setting.options.offload.activations != tessera::MemorySpace::device) {
      throw OptionError(
          "--offload activations: a perceptron's are not counted here; train_mlp plans and shows them (--metrics)");
    }
    tessera::trainer::check_offloaded_activations(request.setting.options.offload,
                                                  request.subject->saves(request.setting));
    note_unread(line, request);
    request.setting.seq = model.seq.value_or(default_seq(*request.subject));
    if (request.time.machine) request.setting.device = find_machine(*request.time.machine).device();
  }
  return request;
}

std::vector<tessera::plan::StateSpec> optimizer_states(OptimizerKind kind) {
  return make_optimizer(kind)->state_specs();
}

}  // namespace tools
