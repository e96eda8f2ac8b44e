// The way of every call, from the user to the backend.
#include "comm/checked_communicator.hpp"

#include "comm/operation_checks.hpp"

namespace tessera::comm {

// A call that is rejected takes no sequence number: the caller may correct it and go on.
template <typename Operation>
void CheckedCommunicator::call(Stream& stream, const Operation& operation) {
  const Signature signature = signature_of(operation, sequence_ + 1);
  check_stream(*this, stream, signature);
  check(*this, operation);
  enqueue(stream, signature, operation);
  ++sequence_;
}

template void CheckedCommunicator::call(Stream&, const std::span<const AllGather>&);
template void CheckedCommunicator::call(Stream&, const std::span<const ReduceScatter>&);
template void CheckedCommunicator::call(Stream&, const AllReduce&);
template void CheckedCommunicator::call(Stream&, const Broadcast&);
template void CheckedCommunicator::call(Stream&, const Barrier&);

}  // namespace tessera::comm
