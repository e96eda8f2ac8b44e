// Opening a channel is what makes a communicator.
#include "comm/control/control_communicator.hpp"

#include <utility>

namespace tessera::comm {
namespace {

struct ControlCalls {
  ControlGroup group;
  ControlCall call(Stream&, const Signature& signature) const { return {group, signature}; }
};

}  // namespace

std::unique_ptr<Communicator> make_control_communicator(Control& control, const std::string& name,
                                                        const std::optional<Group>& group) {
  Control::Opened opened = control.open(name, group, "");
  const ControlGroup made{
      .control = control, .channel = opened.channel, .place = opened.members.place, .size = opened.members.size()};
  return make_task_communicator(std::move(opened.members), communicator_name(name, group), ControlCalls{made});
}

}  // namespace tessera::comm
