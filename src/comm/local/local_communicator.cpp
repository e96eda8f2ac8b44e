// Each collective becomes one task on the rank's stream.
#include "comm/local/local_communicator.hpp"

#include "comm/local/local_collectives.hpp"

namespace tessera::comm {

template <typename Operation>
void LocalCommunicator::submit(Stream& stream, const Signature& signature, const Operation& operation) {
  stream.submit([&group = group_, rank = rank(), signature, operation] {
    run_collective({.group = group, .rank = rank, .signature = signature}, operation);
  });
}

void LocalCommunicator::enqueue(Stream& stream, const Signature& signature, const AllGather& operation) {
  submit(stream, signature, operation);
}
void LocalCommunicator::enqueue(Stream& stream, const Signature& signature, const ReduceScatter& operation) {
  submit(stream, signature, operation);
}
void LocalCommunicator::enqueue(Stream& stream, const Signature& signature, const AllReduce& operation) {
  submit(stream, signature, operation);
}
void LocalCommunicator::enqueue(Stream& stream, const Signature& signature, const Broadcast& operation) {
  submit(stream, signature, operation);
}
void LocalCommunicator::enqueue(Stream& stream, const Signature& signature, const Barrier& operation) {
  submit(stream, signature, operation);
}

}  // namespace tessera::comm
