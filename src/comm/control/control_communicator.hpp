// Collectives over the control channel, for small memory of the host where ranks compute on devices: every rank's data
// goes to all in rounds of blobs, and each computes its own result, in rank order. What goes that way are the World's
// conveniences and the parts of checkpoints; nothing of a training step.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "comm/control/control.hpp"
#include "comm/task_communicator.hpp"

namespace tessera::comm {

// One communicator's channel, and this rank's place among its members. Tasks keep it, and the control outlives them.
struct ControlGroup {
  Control& control;
  std::size_t channel;
  int place;
  int size;
};

void run_collective(const ControlGroup& group, const Signature& signature, std::span<const AllGather> segments);
void run_collective(const ControlGroup& group, const Signature& signature, std::span<const ReduceScatter> segments);
void run_collective(const ControlGroup& group, const Signature& signature, const AllReduce& operation);
void run_collective(const ControlGroup& group, const Signature& signature, const Broadcast& operation);
void run_collective(const ControlGroup& group, const Signature& signature, const Barrier& operation);

class ControlCommunicator final : public TaskCommunicator<ControlCommunicator> {
 public:
  // Collective over all ranks: opens a channel of this name. Streams must be the CPU's.
  ControlCommunicator(Control& control, const std::string& name, const std::optional<Group>& group)
      : ControlCommunicator(control, communicator_name(name, group), control.open(name, group, "")) {}

 private:
  ControlCommunicator(Control& control, std::string name, const Control::Opened& opened)
      : TaskCommunicator(opened.members, std::move(name)),
        group_{.control = control, .channel = opened.channel, .place = rank(), .size = size()} {}

  friend TaskCommunicator<ControlCommunicator>;
  template <typename Operation>
  void submit(Stream& stream, const Signature& signature, const Operation& operation) {
    stream.submit([group = group_, signature, operation] { run_collective(group, signature, operation); });
  }

  ControlGroup group_;
};

}  // namespace tessera::comm
