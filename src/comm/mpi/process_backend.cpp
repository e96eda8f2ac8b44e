// Making a communicator is itself a collective, with the name as label: ranks that disagree about it, or do not come,
// get the same errors as in any other.
#include "comm/mpi/process_backend.hpp"

#include <exception>

#include "comm/mpi/process_communicator.hpp"

namespace tessera::comm {

ProcessBackend::ProcessBackend(ProcessJob& job, int threads, RankLog& log)
    : job_(job), threads_(threads), log_(log), creation_(job, 0, "creation", job.take_creation_memory()) {}

std::unique_ptr<Communicator> ProcessBackend::make_communicator(std::string name, const CommunicatorUse&) {
  SharedMemory memory = shared_with_host(name);
  return std::make_unique<ProcessCommunicator>(
      std::make_shared<ProcessGroup>(job_, ++communicators_made_, std::move(name), std::move(memory)));
}

// The rank that leads a host makes the memory, the others open it before anybody goes on.
SharedMemory ProcessBackend::shared_with_host(const std::string& name) {
  const Place& place = job_.place();
  const Bytes size = shared::GroupLayout(place.ranks).size();
  SharedMemory memory;
  if (place.leads()) memory = SharedMemory::make("tessera-communicator", size);
  creation_.enter(signature_of_creation(name), nullptr, memory.file().descriptor);
  try {
    if (!place.leads()) {
      memory = SharedMemory::open({.owner = job_.process_of(place.leader()),
                                   .descriptor = creation_.creation_descriptor(place.leader()),
                                   .size = size});
    }
  } catch (...) {
    creation_.fail(std::current_exception());
    throw;
  }
  creation_.finish();
  return memory;
}

}  // namespace tessera::comm
