// A window that is open: what its handle may read and write, which gradients it was asked for, and which streams of
// the user's take part in it. The executor opens and closes it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shard/kept_objects.hpp"
#include "shard/model_memory.hpp"
#include "tessera/device/event.hpp"
#include "tessera/device/stream.hpp"
#include "tessera/plan/plan.hpp"
#include "tessera/shard/unit.hpp"
#include "tessera/shard/window.hpp"
#include "tessera/shard/window_host.hpp"

namespace tessera {

// Which gradients a unit's backward windows were asked for, in this window and in this micro-batch: what is missing is
// an error or, for optional parameters and earlier windows, zero.
class GradientLedger {
 public:
  explicit GradientLedger(std::size_t parameters) : in_window_(parameters, false), in_micro_batch_(parameters, false) {}

  void begin_micro_batch() {
    std::fill(in_micro_batch_.begin(), in_micro_batch_.end(), false);
    computed_ = false;
    backward_windows_ = 0;
  }
  // The unit's how many-th backward window of this micro-batch begins.
  std::size_t begin_window() {
    std::fill(in_window_.begin(), in_window_.end(), false);
    return ++backward_windows_;
  }

  // True the first time in this window: nothing stands there yet that could be added to.
  bool ask(std::size_t parameter) {
    const bool first = !in_window_[parameter];
    in_window_[parameter] = true;
    in_micro_batch_[parameter] = true;
    return first;
  }
  // A window that the user did not skip.
  void end_computed_window() { computed_ = true; }
  bool computed_in_micro_batch() const { return computed_; }
  bool asked_in_window(std::size_t parameter) const { return in_window_[parameter]; }
  bool asked_in_micro_batch(std::size_t parameter) const { return in_micro_batch_[parameter]; }

 private:
  std::vector<bool> in_window_;
  std::vector<bool> in_micro_batch_;
  bool computed_ = false;
  std::size_t backward_windows_ = 0;
};

// One at each depth to which a plan's windows nest.
class OpenWindow final : public WindowView {
 public:
  struct Model {
    const plan::Plan& plan;
    std::span<const std::unique_ptr<Unit>> units;
    ModelMemory& memory;
    std::vector<GradientLedger>& ledgers;  // by unit
    Stream& compute;
    int rank;
  };
  explicit OpenWindow(const Model& model);

  // ---- what the executor does, in this order ----
  // In a step of this program, as this operation of its plan. `serial`: the number of this opening.
  void open(const plan::Operation& window, std::size_t program, std::size_t serial);
  // The next of the collectives that the plan has here is on its way, until what it brings together is taken. Throws as
  // contribution() does.
  void begin_collective(const Collective& collective);
  bool has_begun(const Collective& collective) const { return current_->on_its_way == &collective; }
  bool meets_others() const;  // the one that is on its way: a rank alone has nobody to meet, and messages go later
  bool overlaps() const { return current_->on_its_way->options().overlaps; }
  Collected<std::byte> take_collective();
  // The next one, or null; and that there is none, which a window's end needs.
  const Collective* next_collective() const;
  void require_collectives_done() const;
  bool is_skipped() const { return current_->skipped; }
  // Gradients that nobody asked for: zero in an earlier window of several and for optional parameters, else an error.
  void settle_gradients();
  void fork_joined_streams();   // what is enqueued there from now on waits for the compute stream as it is
  void await_joined_streams();  // the compute stream waits for what they have so far
  void leave_joined_streams();  // and for the last time
  KeptObjects::Objects take_kept() { return std::exchange(kept_, {}); }
  void close() { current_.reset(); }

  // ---- what a handle does ----
  bool is(std::size_t serial) const { return current_ && current_->serial == serial; }
  const Unit& unit() const override { return *units_[current_->use.unit]; }
  plan::WindowKind kind() const override { return current_->use.kind; }
  std::size_t granules() const override { return plan_.granules(current_->program).total; }
  bool trains(const Parameter& parameter) const override;
  const float* loss_scale() override { return &memory_.scalars(current_->program)->loss_scale; }
  View parameter(const Parameter& parameter, std::optional<DType> type) override;
  View gradient(const Parameter& parameter, std::optional<DType> type, GradientMode mode) override;
  std::span<float> values(const Buffer& buffer) override { return memory_.values(unit(), buffer); }
  std::span<std::byte> saved() override;
  View contribution(const Collective& collective, std::optional<DType> type) override;
  void check_collect(const Collective& collective, std::optional<DType> type) override;
  Stream& stream() override { return compute_; }
  void join(Stream& other) override;
  void keep(std::shared_ptr<void> object) override { kept_.push_back(std::move(object)); }
  const plan::WindowUse& use() const { return current_->use; }
  std::size_t serial() const { return current_->serial; }
  void skip() { current_->skipped = true; }  // its gradients count as zero
  std::string describe() const;

 private:
  struct Current {
    const plan::Operation* operation;
    plan::WindowUse use;
    std::size_t program;
    std::size_t serial;
    bool last_backward;    // of its unit, in this micro-batch
    bool skipped = false;  // by the user: an optional unit
    std::size_t collectives_done = 0;
    const Collective* on_its_way = nullptr;
  };
  // A stream of the user's that took part in a window.
  struct Joined {
    Stream::Implementation* stream;
    std::weak_ptr<const void> life;
    std::string name;
    Event fork;
    Event join;
    bool active;
  };

  const std::vector<std::size_t>& collectives() const {
    return collectives_[current_->use.unit][static_cast<std::size_t>(current_->use.kind)];
  }
  void fork(Joined& joined);
  void require_alive(const Joined& joined) const;
  void require_next(const Collective& collective) const;
  // Nothing is allocated where that is so.
  void require_none_on_its_way(std::string_view name, std::string_view happens) const;
  const plan::CollectiveSpec& spec_of(const Collective& collective) const;
  std::byte* message(std::size_t collective);  // where this window has it
  bool trains_unit() const { return plan_.trains(current_->use.unit, current_->program); }
  View view(std::size_t buffer, std::size_t parameter, DType type);
  void fill_gradient_zero(std::size_t unit, std::size_t parameter);

  const plan::Plan& plan_;
  std::span<const std::unique_ptr<Unit>> units_;
  ModelMemory& memory_;
  std::vector<GradientLedger>& ledgers_;
  Stream& compute_;
  int rank_;
  std::vector<std::array<std::vector<std::size_t>, plan::window_kind_count>> collectives_;  // by unit and kind
  std::vector<Joined> joined_;
  KeptObjects::Objects kept_;
  std::optional<Current> current_;
};

}  // namespace tessera
