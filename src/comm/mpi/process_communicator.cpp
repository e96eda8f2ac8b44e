// From calls to tasks.
#include "comm/mpi/process_communicator.hpp"

#include "comm/mpi/process_collectives.hpp"

namespace tessera::comm {

template <typename Operation>
void ProcessCommunicator::submit(Stream& stream, const Signature& signature, const Operation& operation) {
  stream.submit(
      [call = ProcessCall{.group = group_, .signature = signature}, operation] { run_collective(call, operation); });
}

// A task has room for one segment, not for any number.
template <typename Operation>
void ProcessCommunicator::submit_group(Stream& stream, const Signature& signature,
                                       std::span<const Operation> segments) {
  if (segments.size() > 1) return submit(stream, signature, segments);
  stream.submit([call = ProcessCall{.group = group_, .signature = signature}, only = segments.front()] {
    run_collective(call, std::span(&only, 1));
  });
}

void ProcessCommunicator::enqueue(Stream& stream, const Signature& signature, std::span<const AllGather> segments) {
  submit_group(stream, signature, segments);
}
void ProcessCommunicator::enqueue(Stream& stream, const Signature& signature, std::span<const ReduceScatter> segments) {
  submit_group(stream, signature, segments);
}
void ProcessCommunicator::enqueue(Stream& stream, const Signature& signature, const AllReduce& operation) {
  submit(stream, signature, operation);
}
void ProcessCommunicator::enqueue(Stream& stream, const Signature& signature, const Broadcast& operation) {
  submit(stream, signature, operation);
}
void ProcessCommunicator::enqueue(Stream& stream, const Signature& signature, const Barrier& operation) {
  submit(stream, signature, operation);
}

}  // namespace tessera::comm
