// OpenBLAS takes its kernels by the processor's model when it is loaded. For a model that is newer than the library it
// takes those of its oldest one, at a third of the speed.
#pragma once

namespace examples {

// Before anything else in main(): where that has happened, starts this program again with kernels for the instructions
// that the processor has (OPENBLAS_CORETYPE). Does nothing where that variable is set, or without such a library.
void require_fast_blas(char** argv);

}  // namespace examples
