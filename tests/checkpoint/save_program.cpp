// The kill test kills this: it saves one small checkpoint and ends. save_program DIRECTORY STEP RANKS
#include <cstdlib>

#include "checkpoint_model.hpp"
#include "small_save.hpp"

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  checkpoint_model::small_save(argv[1], std::strtoull(argv[2], nullptr, 10), std::atoi(argv[3]));
  return 0;
}
