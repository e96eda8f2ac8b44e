// Collectives over the control channel, for small memory of the host where ranks compute on devices: every rank's data
// goes to all in rounds of blobs, and each computes its own result, in rank order. What goes that way are the World's
// conveniences and the parts of checkpoints; nothing of a training step.
#pragma once

#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/control/control.hpp"
#include "comm/meeting_collectives.hpp"
#include "comm/task_communicator.hpp"
#include "tessera/kernels/reduce.hpp"

namespace tessera::comm {

// One communicator's channel, and this rank's place among its members. Tasks keep it, and the control outlives them.
struct ControlGroup {
  Control& control;
  std::size_t channel;
  int place;
  int size;
};

// A Meeting (meeting_collectives.hpp) whose areas are blobs: this rank's, which goes to all, and those that came. Each
// round is an exchange with the collective's signature, so ranks that disagree learn it in the first.
class ControlMeeting {
 public:
  ControlMeeting(const ControlGroup& group, const Signature& signature)
      : group_(group), signature_(signature), pointers_(static_cast<std::size_t>(size())) {}

  static constexpr std::size_t round_bytes = Control::most_blob;  // divides by every element's size
  int place() const { return group_.place; }
  int size() const { return group_.size; }
  std::span<const void*> scratch() { return pointers_; }
  std::byte* staging(int of, std::size_t) {
    if (of == place()) own_.resize(round_bytes);
    return reinterpret_cast<std::byte*>(of == place() ? own_.data() : blobs_[static_cast<std::size_t>(of)].data());
  }
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) const {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  void sum(const kernels::RankedSum& of) const { kernels::ranked_sum_cpu(of); }

  void regroup(const Staged& staged) {
    const std::size_t before_last = staged.stride * static_cast<std::size_t>(size() - 1);
    exchange(std::string_view(own_).substr(0, before_last + staged.bytes));
  }
  // Ranks meet in one round at least.
  template <typename Move>
  void meet(const std::byte*, const Move& move) {
    move();
    if (blobs_.empty()) exchange("");
  }

 private:
  void exchange(std::string_view blob) { blobs_ = group_.control.exchange(group_.channel, signature_, blob); }

  const ControlGroup group_;
  const Signature& signature_;
  std::string own_;
  std::vector<std::string> blobs_;  // by place
  std::vector<const void*> pointers_;
};

// Collective over all ranks: opens a channel of this name. Streams must be the CPU's.
inline std::unique_ptr<Communicator> make_control_communicator(Control& control, const std::string& name,
                                                               const std::optional<Group>& group) {
  Control::Opened opened = control.open(name, group, "");
  const ControlGroup made{control, opened.channel, opened.members.place, opened.members.size()};
  const auto call_on = [made](Stream&, const Signature& signature) {
    return [made, signature](const auto& operation) {
      ControlMeeting meeting(made, signature);
      run_collective(meeting, operation);
    };
  };
  return make_task_communicator(std::move(opened.members), std::move(opened.name), call_on);
}

}  // namespace tessera::comm
