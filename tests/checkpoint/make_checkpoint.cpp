// Makes a sample of a checkpoint for tests of programs:
//   make_checkpoint DIR STEP SEED SPLIT_BYTES
#include <cstdio>
#include <cstdlib>
#include <string>

#include "sample_checkpoint.hpp"

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  SampleCheckpoint sample = sample_checkpoint();
  sample.step = std::stoull(argv[2]);
  sample.seed = std::stoull(argv[3]);
  sample.split_limit = tessera::Bytes(std::stoull(argv[4]));
  std::puts(write_checkpoint(argv[1], sample).c_str());
  return EXIT_SUCCESS;
}
