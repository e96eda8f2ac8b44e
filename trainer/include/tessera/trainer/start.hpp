// How every program here begins and ends: standard streams that are there, the BLAS that it wants, and errors that are
// one line and an exit code.
#pragma once

#include <filesystem>
#include <functional>
#include <string_view>

#pragma GCC visibility push(default)

namespace tessera::trainer {

// OpenBLAS takes its kernels by the processor's model when it is loaded. For a model that is newer than the library it
// takes those of its oldest one, at a third of the speed. Where that has happened, this starts the program again with
// kernels for the instructions that the processor has (OPENBLAS_CORETYPE): call it before anything else in main(). It
// does nothing where that variable is set, or without such a library.
void require_fast_blas(char** argv);

// Calls the body, with standard streams that are open. Returns its code, exit_bad_options for an OptionError, 1 for any
// other error, which stderr gets in one line behind `prefix`, from the first process of a job alone; 1 too in place of
// 0 where standard output did not take everything.
int run_program(const std::function<int()>& body, std::string_view prefix = "error");

// "TEXT\n" on standard error. Where that is closed or full nothing happens: the exit code still says what it has to.
void tell(std::string_view text) noexcept;

// The text on standard output, at once. A failure is remembered, for run_program().
void print(std::string_view text) noexcept;

// Finds out before hours of work whether their result can be written. Throws DataError when no file can appear under
// this path. Leaves nothing behind, and what stands there untouched.
void require_writable(const std::filesystem::path& path);

}  // namespace tessera::trainer

#pragma GCC visibility pop
