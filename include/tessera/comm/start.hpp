// How this process was started: alone, or as one of several processes of a job. Nothing has to be set: launchers leave
// variables in the environment, and launch() (run.hpp) reads them.
//
// Precedence: an MPI or PMIx launch (Open MPI's, MPICH's or PMIx's variables), then torchrun's variables, then a SLURM
// step of more than one task, then alone. A build without MPI looks at an MPI launch last, and refuses it.
#pragma once

#include <string>

#pragma GCC visibility push(default)

namespace tessera {

enum class Launcher { alone, mpi, torchrun, slurm };

struct Start {
  Launcher launcher = Launcher::alone;
  std::string by = "";  // in words: "Open MPI's mpirun"; empty when alone
  int rank = 0;         // of this process
  int ranks = 1;        // of the job; 0: the launcher did not say (PMIx alone), World::size() will
};

// From this process's environment. Throws UsageError, naming the variable and its value, for one that is no number
// within its limits, and for one of torchrun's that is missing beside its others where nothing else says how many ranks
// there are.
Start how_started();

// Whether this process speaks for the job: of several that were started with the same options the first one does. Where
// the environment makes no sense, so that nobody knows which that is, every process does.
bool is_first_process() noexcept;

}  // namespace tessera

#pragma GCC visibility pop
