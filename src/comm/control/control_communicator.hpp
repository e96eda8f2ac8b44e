// Collectives over the control channel, for small memory of the host where ranks compute on devices: every rank's data
// goes to all in rounds of blobs, and each computes its own result, in rank order. What goes that way are the World's
// conveniences and the parts of checkpoints; nothing of a training step.
#pragma once

#include <memory>
#include <optional>
#include <string>

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

// One rank's part of one collective.
struct ControlCall {
  ControlGroup group;
  Signature signature;
  void operator()(std::span<const AllGather> segments) const;
  void operator()(std::span<const ReduceScatter> segments) const;
  void operator()(const AllReduce& operation) const;
  void operator()(const Broadcast& operation) const;
  void operator()(const Barrier& operation) const;
};

// Collective over all ranks: opens a channel of this name. Streams must be the CPU's.
std::unique_ptr<Communicator> make_control_communicator(Control& control, const std::string& name,
                                                        const std::optional<Group>& group);

}  // namespace tessera::comm
