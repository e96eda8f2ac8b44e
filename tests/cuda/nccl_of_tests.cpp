// A launch opens this as NCCL in programs with the emulated device: NCCL's calls among threads.
#include "nccl_of_tests.hpp"

#include <memory>

#include "comm/halves.hpp"
#include "fake_nccl.hpp"

namespace tessera::comm {

FakeFaults& faults_of_opened_nccl() {
  static FakeFaults faults;
  return faults;
}

bool has_nccl() { return true; }

std::unique_ptr<NcclLibrary> open_nccl(const std::string&) {
  return std::make_unique<FakeNccl>(faults_of_opened_nccl());
}

}  // namespace tessera::comm
