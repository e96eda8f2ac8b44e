// The backend of ranks that are processes, on the CPU.
#pragma once

#include <memory>
#include <string>

#include "comm/mpi/process_group.hpp"
#include "comm/mpi/process_job.hpp"
#include "comm/world_backend.hpp"

namespace tessera::comm {

class ProcessBackend final : public World::Backend {
 public:
  ProcessBackend(ProcessJob& job, int threads, RankLog& log);

  Arena make_arena(Bytes size) final { return job_.make_arena(size); }
  std::unique_ptr<Communicator> make_communicator(std::string name, const CommunicatorUse& use) final;

 private:
  SharedMemory shared_with_host(const std::string& label, const Members& members);

  ProcessJob& job_;
  ProcessGroup creation_;
  std::size_t communicators_made_ = 0;
};

}  // namespace tessera::comm
