// A window's handle asks its host: the running plan, or a pass that is watched without one (watched_pass.hpp).
// Those who only use windows need none of it.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/error.hpp"
#include "tessera/device/stream.hpp"
#include "tessera/shard/unit.hpp"
#include "tessera/shard/window.hpp"

#pragma GCC visibility push(default)

namespace tessera {

// The window that is open, as its handle sees it. Types: nullopt is asked for by layers of double.
class WindowView {
 public:
  using View = TensorMemory;
  virtual ~WindowView() = default;

  virtual const Unit& unit() const = 0;
  virtual plan::WindowKind kind() const = 0;
  virtual std::size_t granules() const { return 0; }
  virtual bool computes() const { return true; }
  virtual WindowNotes* notes() { return nullptr; }
  virtual bool trains(const Parameter& parameter) const = 0;
  virtual View parameter(const Parameter& parameter, std::optional<DType> type) = 0;
  virtual View gradient(const Parameter& parameter, std::optional<DType> type, GradientMode mode) = 0;
  virtual std::span<float> values(const Buffer& buffer) = 0;
  virtual std::span<std::byte> saved() = 0;
  virtual View contribution(const Collective& collective, std::optional<DType> type) = 0;
  // Refuses one of another type, or whose turn it is not.
  virtual void check_collect(const Collective& collective, std::optional<DType> type) {
    contribution(collective, type);
  }
  virtual const float* loss_scale() = 0;
  virtual Stream& stream() = 0;
  virtual void join(Stream& other) = 0;
  virtual void keep(std::shared_ptr<void> object) = 0;
};

class WindowHost {
 public:
  virtual ~WindowHost() = default;
  virtual const Unit& unit(std::size_t index) const = 0;
  // The window of this opening, while it is open; else null.
  virtual WindowView* open_window(std::size_t serial) = 0;
  // The next window of the pass; where others are open, inside them.
  virtual Window open(const plan::WindowUse& use) = 0;
  // Throws UsageError where another one is open inside it, or should still open there.
  virtual void close(std::size_t serial) = 0;
  // Inside the window of this opening.
  virtual void begin(std::size_t serial, const Collective& collective) = 0;
  virtual Collected<std::byte> collect(std::size_t serial, const Collective& collective) = 0;
  // Aborts the world; the text says in which window.
  virtual void abandon(std::string_view what) noexcept = 0;

  // The recompute window of a unit that recomputes, right before its backward one; of others nothing.
  void compute_again(const Unit& unit);
  // The calls that follow are of another micro-batch of those that are on their way, or of this one again.
  void take_place(std::size_t place) {
    while (places_.size() <= place) places_.emplace_back();
    place_ = place;
  }
  KeptCalls& kept_calls() { return places_[place_]; }

 protected:
  void clear_kept_calls() {  // a pass has ended
    for (KeptCalls& calls : places_) calls.clear();
  }

 private:
  std::deque<KeptCalls> places_ = std::deque<KeptCalls>(1);  // of each micro-batch that is on its way
  std::size_t place_ = 0;
};

// Handles keep this of the model that opened them. It outlives the model, so that a handle which comes late finds that
// out instead of freed memory.
struct WindowLink {
  WindowHost* host;  // null: the model is gone, or has another plan and with it another executor
  int rank = 0;
  std::vector<std::string> units = {};                // their names
  std::map<const Module*, std::size_t> modules = {};  // the unit that each was added as
};
WindowLink link_to(WindowHost& host, int rank, std::span<const std::unique_ptr<Unit>> units,
                   const std::map<const Module*, Unit*>& modules);

// For an accessor that is asked for another type than it has: "parameter blocks.0.weight is bf16 here, not fp32".
struct AskedType {
  std::string_view what;
  const Parameter& parameter;
  DType actual;
  std::optional<DType> asked;
};
UsageError wrong_type(const std::string& window, const AskedType& asked);
void require_type(const std::string& window, const Collective& collective, std::optional<DType> asked);

// A unit that recomputes by its setting is not asked to by its pass: throws UsageError.
void require_no_setting(const Unit& unit);

}  // namespace tessera

#pragma GCC visibility pop
