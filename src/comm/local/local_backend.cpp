// Making a communicator is itself a collective of its group, with the name as label: ranks that disagree about it, or
// do not come, get the same errors as in any other.
#include "comm/local/local_backend.hpp"

#include "comm/local/local_communicator.hpp"
#include "comm/local/local_group.hpp"

namespace tessera::comm {

std::unique_ptr<Communicator> LocalBackend::make_communicator(std::string name, const CommunicatorUse&) {
  LocalGroup& group = job_.group(communicators_made_++, name);
  if (device().kind() == DeviceKind::cuda) group.make_marks(rank_, device());
  group.enter(rank_, {.signature = signature_of_creation(name)});
  group.finish(rank_);
  return std::make_unique<LocalCommunicator>(rank_, group);
}

}  // namespace tessera::comm
