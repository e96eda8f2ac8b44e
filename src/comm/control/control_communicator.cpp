// Each round is an exchange with the collective's signature, so ranks that disagree learn it in the first.
#include "comm/control/control_communicator.hpp"

#include <cstring>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/meeting_collectives.hpp"
#include "tessera/kernels/reduce.hpp"

namespace tessera::comm {
namespace {

// A Meeting (meeting_collectives.hpp) whose areas are blobs: this rank's, which goes to all, and those that came.
class ControlMeeting {
 public:
  explicit ControlMeeting(const ControlCall& call) : call_(call), pointers_(static_cast<std::size_t>(size())) {}

  static constexpr std::size_t round_bytes = Control::most_blob;  // divides by every element's size
  int place() const { return call_.group.place; }
  int size() const { return call_.group.size; }
  std::span<const void*> scratch() const { return pointers_; }
  std::byte* staging(int of, std::size_t) const {
    if (of == place()) own_.resize(round_bytes);
    return reinterpret_cast<std::byte*>(of == place() ? own_.data() : blobs_[static_cast<std::size_t>(of)].data());
  }
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) const {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  void sum(const kernels::RankedSum& of) const { kernels::ranked_sum_cpu(of); }

  void regroup(const Staged& staged) const {
    const std::size_t before_last = staged.stride * static_cast<std::size_t>(size() - 1);
    exchange(std::string_view(own_).substr(0, before_last + staged.bytes));
  }
  // Ranks meet in one round at least.
  template <typename Move>
  void meet(const std::byte*, const Move& move) const {
    move();
    if (blobs_.empty()) exchange("");
  }

 private:
  void exchange(std::string_view blob) const {
    blobs_ = call_.group.control.exchange(call_.group.channel, call_.signature, blob);
  }

  const ControlCall& call_;
  mutable std::string own_;
  mutable std::vector<std::string> blobs_;  // by place
  mutable std::vector<const void*> pointers_;
};

struct ControlCalls {
  ControlGroup group;
  ControlCall call(Stream&, const Signature& signature) const { return {group, signature}; }
};

}  // namespace

void ControlCall::operator()(std::span<const AllGather> segments) const {
  run_collective(ControlMeeting(*this), segments);
}
void ControlCall::operator()(std::span<const ReduceScatter> segments) const {
  run_collective(ControlMeeting(*this), segments);
}
void ControlCall::operator()(const AllReduce& operation) const { run_collective(ControlMeeting(*this), operation); }
void ControlCall::operator()(const Broadcast& operation) const { run_collective(ControlMeeting(*this), operation); }
void ControlCall::operator()(const Barrier& operation) const { run_collective(ControlMeeting(*this), operation); }

std::unique_ptr<Communicator> make_control_communicator(Control& control, const std::string& name,
                                                        const std::optional<Group>& group) {
  Control::Opened opened = control.open(name, group, "");
  const ControlGroup made{
      .control = control, .channel = opened.channel, .place = opened.members.place, .size = opened.members.size()};
  return make_task_communicator(std::move(opened.members), communicator_name(name, group), ControlCalls{made});
}

}  // namespace tessera::comm
