// Each part's units stand between two units without parameters, whose windows pass messages. What comes is copied to
// the memory of its micro-batch, so that a message's buffer is free as soon as it was read.
#include "tessera/shard/pipeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "tessera/base/error.hpp"
#include "tessera/kernels/elementwise.hpp"

namespace tessera {

using plan::ScheduledPass;
using plan::WindowKind;

namespace {

Bytes aligned(Bytes size) { return round_up(size, Bytes(512)); }

// The lowest place that nobody has, from a micro-batch's forward pass to the end of its backward one.
std::vector<std::size_t> places_of(const std::vector<ScheduledPass>& passes) {
  std::vector<std::size_t> result;
  std::vector<bool> taken;
  std::map<std::pair<std::size_t, std::size_t>, std::size_t> of;
  for (const ScheduledPass& pass : passes) {
    const std::pair key(pass.micro_batch, pass.chunk);
    if (pass.kind == WindowKind::forward) {
      const auto free = std::find(taken.begin(), taken.end(), false);
      of[key] = static_cast<std::size_t>(free - taken.begin());
      if (free == taken.end()) taken.push_back(false);
      taken[of[key]] = true;
    }
    result.push_back(of.at(key));
    if (pass.kind == WindowKind::backward) taken[of[key]] = false;
  }
  return result;
}

// Which backward passes follow a backward_input of their micro-batch.
std::vector<bool> rests_of(const std::vector<ScheduledPass>& passes) {
  std::vector<bool> result;
  for (const ScheduledPass& pass : passes) {
    const bool split =
        std::find(passes.begin(), passes.end(),
                  ScheduledPass{WindowKind::backward_input, pass.micro_batch, pass.chunk}) != passes.end();
    result.push_back(split && pass.kind == WindowKind::backward);
  }
  return result;
}

// One end of what passes between two parts: activations, and back their gradients.
class LinkEnd final : public Module {
 public:
  LinkEnd(const PipelineOptions& options, std::size_t part, bool sends)
      : number_(part),
        forward_(options.elements, message(options, sends ? CollectiveKind::send : CollectiveKind::receive, true)),
        back_(options.elements, message(options, sends ? CollectiveKind::receive : CollectiveKind::send, false)) {}

  void visit(ModuleVisitor& visitor) override {
    visitor(fmt::format("x{}", number_), forward_);
    visitor(fmt::format("dx{}", number_), back_);
  }

  // One of the two is empty: what is sent, or where it is received.
  void pass(FullyShard& model, WindowKind kind, std::span<const std::byte> sent, std::span<std::byte> received) {
    model.within(*unit, kind, [&](Window& window) {
      const Collective& message = kind == WindowKind::backward ? back_ : forward_;
      switch (*message.options().type) {
        case DType::bf16: return pass<bf16>(window, message, sent, received);
        case DType::fp16: return pass<fp16>(window, message, sent, received);
        default: return pass<float>(window, message, sent, received);
      }
    });
  }

  Unit* unit = nullptr;

 private:
  static CollectiveOptions message(const PipelineOptions& options, CollectiveKind kind, bool forward) {
    return {.kind = kind,
            .type = options.type,
            .forward = forward,
            .backward = !forward,
            .evaluate = forward,
            .buffers = options.buffers};
  }

  template <typename T>
  static void pass(Window& window, const Collective& message, std::span<const std::byte> sent,
                   std::span<std::byte> received) {
    if (!sent.empty()) {
      const auto to = std::as_writable_bytes(window.contribution<T>(message));
      kernels::copy(window.stream(), to.data(), sent.data(), Bytes(to.size()));
    }
    const Collected<T> came = window.collect<T>(message);
    if (received.empty()) return;
    kernels::copy(window.stream(), received.data(), reinterpret_cast<const std::byte*>(came.first),
                  Bytes(sizeof(T) * came.values));
  }

  std::size_t number_;
  Collective forward_;
  Collective back_;
};

}  // namespace

// most[n][u]: what the part that takes most takes at least, where n parts end before unit u.
EvenCut cut_evenly(std::span<const double> units, std::size_t parts) {
  if (parts == 0 || parts > units.size()) {
    throw UsageError(
        fmt::format("{} units cannot be cut into {} parts: choose 1 to {}", units.size(), parts, units.size()));
  }
  std::vector<double> sums(1, 0);
  for (const double unit : units) sums.push_back(sums.back() + unit);
  constexpr double never = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> most(parts + 1, std::vector<double>(units.size() + 1, never));
  std::vector<std::vector<std::size_t>> begin(parts + 1, std::vector<std::size_t>(units.size() + 1, 0));
  most[0][0] = 0;
  for (std::size_t part = 1; part <= parts; ++part) {
    for (std::size_t end = part; end <= units.size(); ++end) {
      for (std::size_t from = part - 1; from < end; ++from) {
        const double takes = std::max(most[part - 1][from], sums[end] - sums[from]);
        if (takes >= most[part][end]) continue;
        most[part][end] = takes;
        begin[part][end] = from;
      }
    }
  }
  EvenCut result{std::vector<std::size_t>(parts), 1};
  for (std::size_t part = parts, end = units.size(); part > 0; --part) end = result.begins[part - 1] = begin[part][end];
  if (sums.back() > 0) result.imbalance = most[parts][units.size()] * static_cast<double>(parts) / sums.back();
  return result;
}

struct Pipeline::Links {
  Links(const PipelineOptions& options, std::size_t part) : before(options, part, true), here(options, part, false) {}
  LinkEnd before;  // at the part before, which sends activations
  LinkEnd here;
};

std::vector<UnitWindow> PipelinePart::windows(WindowKind kind, std::span<const Unit* const> units) const {
  std::vector<UnitWindow> result;
  for (const Unit* unit : units) result.push_back({unit, kind});
  const bool back = kind == WindowKind::backward || kind == WindowKind::backward_input;
  if (back) std::reverse(result.begin(), result.end());
  return result;
}

void PipelinePart::backward_input(FullyShard&, const PartMemory&) {
  throw UsageError("a part has no backward_input(), and its schedule goes back in two passes: choose another schedule");
}

Pipeline::Pipeline(World& world, const FullyShardOptions& options, const PipelineOptions& pipeline,
                   std::vector<std::unique_ptr<PipelinePart>> parts)
    : pipeline_(pipeline), parts_(std::move(parts)) {
  const auto& [stages, micro_batches, chunks] = pipeline_.shape;
  check(pipeline_.schedule, pipeline_.shape);
  if (!options.mesh || options.mesh->size(Axis::pipeline) != stages) {
    throw UsageError(fmt::format("a pipeline of {} stages needs FullyShardOptions::mesh with as many places along {}",
                                 stages, to_string(Axis::pipeline)));
  }
  if (stages == 1 && chunks > 1) throw UsageError("a pipeline of one stage has one chunk: what would it wait for?");
  if (parts_.size() != stages * chunks) {
    throw UsageError(fmt::format("a pipeline of {} stages with {} chunks has {} parts, not {}", stages, chunks,
                                 stages * chunks, parts_.size()));
  }
  for (std::size_t part = 0; part < parts_.size(); ++part) {
    links_.push_back(part == 0 ? nullptr : std::make_unique<Links>(pipeline_, part));
  }
  for (std::size_t stage = 0; stage < stages; ++stage) {
    places_.push_back(places_of(pipeline_.schedule[stage]));
    is_rest_.push_back(rests_of(pipeline_.schedule[stage]));
    make_model(world, options, stage);
  }
}

Pipeline::~Pipeline() = default;

Bytes Pipeline::message_size() const {
  return parts_.size() == 1 ? Bytes(0) : aligned(size_of(pipeline_.type) * pipeline_.elements);
}

// A place is as large as the largest of the stage's parts takes, and so is scratch memory.
Bytes Pipeline::place_size(std::size_t stage) const {
  Bytes most;
  for (std::size_t chunk = 0; chunk < pipeline_.shape.chunks; ++chunk)
    most = std::max(most, parts_[part_of(stage, chunk)]->activations());
  return message_size() + aligned(most);
}
Bytes Pipeline::scratch_size(std::size_t stage) const {
  Bytes most;
  for (std::size_t chunk = 0; chunk < pipeline_.shape.chunks; ++chunk)
    most = std::max(most, parts_[part_of(stage, chunk)]->scratch());
  return aligned(most);
}

void Pipeline::make_model(World& world, FullyShardOptions options, std::size_t stage) {
  const std::size_t places = plan::in_flight(pipeline_.schedule[stage]);
  options.activations = place_size(stage) * places + scratch_size(stage) + message_size() * 3;
  options.micro_batches = 1;  // the program has all windows of a step
  FullyShard& model = *models_.emplace_back(std::make_unique<FullyShard>(world, std::move(options)));
  struct Windows {
    std::map<WindowKind, std::vector<UnitWindow>> of_part;
    const Unit* before = nullptr;
    const Unit* behind = nullptr;
  };
  std::vector<Windows> chunks;
  for (std::size_t chunk = 0; chunk < pipeline_.shape.chunks; ++chunk) {
    const std::size_t part = part_of(stage, chunk);
    Windows& windows = chunks.emplace_back();
    const auto add = [&](LinkEnd& end, std::string_view side) {
      return end.unit = &model.add(end, fmt::format("{}.{}", side, part));
    };
    if (part > 0) windows.before = add(links_[part]->here, "before");
    const std::size_t first = model.unit_count();
    parts_[part]->add_to(model);
    std::vector<const Unit*> units;
    for (std::size_t unit = first; unit < model.unit_count(); ++unit) units.push_back(&model.unit(unit));
    if (part + 1 < parts_.size()) windows.behind = add(links_[part + 1]->before, "behind");
    for (const WindowKind kind :
         {WindowKind::forward, WindowKind::backward_input, WindowKind::backward, WindowKind::evaluate})
      windows.of_part[kind] = parts_[part]->windows(kind, units);
  }
  ProgramOptions program;
  const auto pass = [&](std::vector<UnitWindow>& list, std::size_t chunk, WindowKind kind, bool whole = true) {
    const Windows& windows = chunks[chunk];
    const bool back = kind == WindowKind::backward || kind == WindowKind::backward_input;
    const auto link = [&](const Unit* unit) {
      if (unit != nullptr && whole) list.push_back({unit, back ? WindowKind::backward : kind});
    };
    link(back ? windows.behind : windows.before);
    const std::vector<UnitWindow>& own = windows.of_part.at(kind);
    list.insert(list.end(), own.begin(), own.end());
    link(back ? windows.before : windows.behind);
  };
  for (std::size_t i = 0; i < pipeline_.schedule[stage].size(); ++i) {
    const ScheduledPass& each = pipeline_.schedule[stage][i];
    pass(program.windows, each.chunk, each.kind, !is_rest_[stage][i]);
  }
  for (std::size_t chunk = 0; chunk < pipeline_.shape.chunks; ++chunk)
    pass(program.evaluation, chunk, WindowKind::evaluate);
  model.add_program(std::move(program));
}

std::vector<ModelRole> Pipeline::roles(const std::function<std::unique_ptr<Optimizer>()>& optimizer) const {
  std::vector<ModelRole> result;
  for (const auto& model : models_) {
    result.push_back({fmt::format("stage {}", result.size()), model.get(), optimizer()});
  }
  return result;
}

void Pipeline::finalize(const std::function<std::unique_ptr<Optimizer>()>& optimizer) {
  std::vector<ModelRole> all = roles(optimizer);
  stage_ = finalize_roles(all);
}

std::vector<plan::RankRole> Pipeline::plans(const std::function<std::unique_ptr<Optimizer>()>& optimizer) {
  std::vector<ModelRole> all = roles(optimizer);
  return plan_roles(all);
}

PartMemory Pipeline::memory_of(const ScheduledPass& pass, std::size_t place) {
  const std::size_t part = part_of(stage_, pass.chunk), each = place_size(stage_).count();
  const std::size_t message = message_size().count(), sent = size_of(pipeline_.type).count() * pipeline_.elements;
  const std::span<std::byte> all = model().activation_memory();
  const std::span<std::byte> mine = all.subspan(place * each, each), passed = all.last(3 * message);
  const bool is_first = part == 0, is_last = part + 1 == parts_.size();
  PartMemory result{.micro_batch = pass.micro_batch,
                    .place = place,
                    .activations = mine.subspan(message, parts_[part]->activations().count()),
                    .input = mine.first(is_first ? 0 : sent),
                    .output = {}};
  const std::size_t scratch = parts_[part]->scratch().count();
  result.scratch = all.subspan(all.size() - passed.size() - scratch_size(stage_).count(), scratch);
  if (pass.kind == WindowKind::forward || pass.kind == WindowKind::evaluate) {
    result.output = passed.first(is_last ? 0 : sent);
  } else {
    result.output_gradient = passed.subspan(message, is_last ? 0 : sent);
    result.input_gradient = passed.subspan(2 * message, is_first ? 0 : sent);
  }
  return result;
}

namespace {

// Into memory that parts read only.
std::span<std::byte> writable(std::span<const std::byte> memory) {
  return {const_cast<std::byte*>(memory.data()), memory.size()};
}

}  // namespace

void Pipeline::go_forward(const ScheduledPass& pass, std::size_t place, WindowKind kind) {
  const std::size_t part = part_of(stage_, pass.chunk);
  const PartMemory memory = memory_of({kind, pass.micro_batch, pass.chunk}, place);
  model().take_place(place);
  if (part > 0) links_[part]->here.pass(model(), kind, {}, writable(memory.input));
  kind == WindowKind::forward ? parts_[part]->forward(model(), memory) : parts_[part]->evaluate(model(), memory);
  if (part + 1 < parts_.size()) links_[part + 1]->before.pass(model(), kind, memory.output, {});
}

void Pipeline::go_back(const ScheduledPass& pass, std::size_t place, bool is_rest) {
  const std::size_t part = part_of(stage_, pass.chunk);
  PartMemory memory = memory_of(pass, place);
  model().take_place(place);
  if (is_rest) {
    memory.output_gradient = {}, memory.input_gradient = {};
    return parts_[part]->backward(model(), memory);
  }
  if (part + 1 < parts_.size())
    links_[part + 1]->before.pass(model(), WindowKind::backward, {}, writable(memory.output_gradient));
  const bool whole = pass.kind == WindowKind::backward;
  whole ? parts_[part]->backward(model(), memory) : parts_[part]->backward_input(model(), memory);
  if (part > 0) links_[part]->here.pass(model(), WindowKind::backward, memory.input_gradient, {});
}

// Messages are on their way that nobody would send: other ranks are told at once, before the model's end waits for
// them.
template <typename Work>
void Pipeline::run(const Work& work) {
  try {
    work();
  } catch (const AbortedError&) {
    throw;
  } catch (const std::exception& error) {
    model().world().abort(error.what());
    throw;
  }
}

void Pipeline::train() {
  run([this] {
    const std::vector<ScheduledPass>& passes = pipeline_.schedule[stage_];
    for (std::size_t i = 0; i < passes.size(); ++i) {
      const std::size_t place = places_[stage_][i];
      if (passes[i].kind == WindowKind::forward) {
        go_forward(passes[i], place, WindowKind::forward);
      } else {
        go_back(passes[i], place, is_rest_[stage_][i]);
      }
    }
  });
}

void Pipeline::update(UpdateOptions options) {
  if (!options.weight) options.weight = static_cast<double>(pipeline_.shape.micro_batches);
  model().update(options);
}

void Pipeline::evaluate() {
  run([this] {
    for (std::size_t chunk = 0; chunk < pipeline_.shape.chunks; ++chunk) {
      go_forward({WindowKind::evaluate, 0, chunk}, 0, WindowKind::evaluate);
    }
  });
}

}  // namespace tessera
