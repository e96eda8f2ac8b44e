// A pass of the user's that runs once before there is a plan: windows write down their order and show scratch memory,
// in which parameters are zero and gradients and buffers go nowhere. It has room for the largest unit, as often as
// windows are open inside each other, and ends before the arena is taken.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/comm/world.hpp"
#include "tessera/device/arena.hpp"
#include "tessera/plan/program.hpp"
#include "tessera/plan/strategy.hpp"
#include "tessera/shard/watched_pass.hpp"

namespace tessera {

class RecordedPass final : public WatchedPass {
 public:
  struct Subject {
    World& world;
    std::span<const std::unique_ptr<Unit>> units;
    const std::map<const Module*, Unit*>& modules;  // that were added as units
    Precision precision;
    Bytes activations;
    const std::string& program;
    const std::optional<std::vector<const Unit*>>& trains;  // none: every unit
  };
  explicit RecordedPass(const Subject& subject);

  // The windows that `pass` opens. Throws UsageError where it opens none, or leaves one open.
  std::vector<plan::WindowUse> run(const std::function<void()>& pass);

  // The model uses these while it records.
  Stream& compute() { return stream_; }
  const float* scale() const { return loss_scale_; }
  std::span<std::byte> activation_memory();

  const Unit& unit(std::size_t index) const override { return *subject_.units[index]; }
  void abandon(std::string_view what) noexcept override;

 private:
  // Where a unit's tensors stand in the scratch memory.
  struct UnitOffsets {
    std::vector<Bytes> parameters;
    std::vector<Bytes> gradients;
    std::vector<Bytes> buffers;
    std::vector<Bytes> collectives;  // what each rank brings
    Bytes saved;
    Bytes end;
  };

  // The handle of an open window sees this; there is one for each depth.
  class Scratch final : public WatchedWindow {
   public:
    explicit Scratch(RecordedPass& pass);

    void open(const plan::WindowUse& use, std::size_t serial) override;
    void close() override;

    bool computes() const override { return true; }
    bool trains(const Parameter& parameter) const override;
    View parameter(const Parameter& parameter, std::optional<DType> type) override;
    View gradient(const Parameter& parameter, std::optional<DType> type, GradientMode mode) override;
    std::span<float> values(const Buffer& buffer) override;
    std::span<std::byte> saved() override { return {at(offsets().saved), unit().options().saved.count()}; }
    View contribution(const Collective& collective, std::optional<DType> type) override;
    const float* loss_scale() override { return pass_.loss_scale_; }
    Stream& stream() override { return pass_.stream_; }
    void join(Stream& other) override;

   private:
    const UnitOffsets& offsets() const { return pass_.offsets_[use().unit]; }
    std::byte* at(Bytes offset) { return memory_.data() + offset.count(); }

    RecordedPass& pass_;
    Arena memory_;
    std::vector<Stream*> joined_;
  };

  std::unique_ptr<WatchedWindow> make_window() override { return std::make_unique<Scratch>(*this); }
  std::size_t ranks() const override { return static_cast<std::size_t>(subject_.world.size()); }
  UnitOffsets offsets_of(const Unit& unit) const;
  const Precision& precision_of(const Unit& unit) const;

  Subject subject_;
  std::vector<UnitOffsets> offsets_;  // by unit
  Bytes largest_;                     // of them
  Arena memory_;                      // of the loss scale and the activations
  Stream stream_;
  const float* loss_scale_;
};

}  // namespace tessera
