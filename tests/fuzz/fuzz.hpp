// All fuzz targets do this with an input: read it, where only a DataError may come out, within memory that grows with
// the input alone. A target is one file that defines read_input(); the loop around it is libFuzzer's, or
// corpus_main.cpp's.
#pragma once

#include <cstddef>
#include <string_view>

namespace fuzz {

// Reads the input as a file. May throw DataError, and nothing else.
void read_input(std::string_view input);

// Ends the program, with the reason, when what must hold does not.
void require(bool holds, const char* what);

// Bytes of memory that may be held at once while an input of this size is read.
constexpr std::size_t memory_limit(std::size_t input_size) { return 64 * input_size + (std::size_t{1} << 20); }

}  // namespace fuzz
