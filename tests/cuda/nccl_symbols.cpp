// A library with the names of NCCL's functions, for the test of how NCCL is opened: its version is what
// TESSERA_TEST_NCCL_VERSION says, a split stores its child when its parent is asked for its state, as NCCL's own thread
// does for a parent that does not block, and its other functions do nothing.
#include <cstdlib>

extern "C" {

int ncclGetVersion(int* version) {
  *version = std::atoi(std::getenv("TESSERA_TEST_NCCL_VERSION"));
  return 0;
}

static void** place_of_child = nullptr;

int ncclCommSplit(void*, int, int, void** child, void*) {
  place_of_child = child;
  return 7;  // ncclInProgress
}

int ncclCommGetAsyncError(void*, int* state) {
  if (place_of_child != nullptr) *place_of_child = &place_of_child;
  *state = 0;
  return 0;
}

#define TESSERA_NO_FUNCTION(name) \
  int name() { return 0; }
TESSERA_NO_FUNCTION(ncclGetUniqueId)
TESSERA_NO_FUNCTION(ncclCommInitRankConfig)
TESSERA_NO_FUNCTION(ncclCommUserRank)
TESSERA_NO_FUNCTION(ncclCommCount)
TESSERA_NO_FUNCTION(ncclCommCuDevice)
TESSERA_NO_FUNCTION(ncclCommFinalize)
TESSERA_NO_FUNCTION(ncclCommDestroy)
TESSERA_NO_FUNCTION(ncclCommAbort)
TESSERA_NO_FUNCTION(ncclGetErrorString)
TESSERA_NO_FUNCTION(ncclGetLastError)
TESSERA_NO_FUNCTION(ncclGroupStart)
TESSERA_NO_FUNCTION(ncclGroupEnd)
TESSERA_NO_FUNCTION(ncclAllGather)
TESSERA_NO_FUNCTION(ncclBroadcast)
TESSERA_NO_FUNCTION(ncclSend)
TESSERA_NO_FUNCTION(ncclRecv)
TESSERA_NO_FUNCTION(ncclReduceScatter)
}
