// A program guards its standard streams with this: files that it opens never take their places, a message that cannot
// be written costs nothing else, and output that did not arrive is no success.
#pragma once

#include <string_view>

namespace tools {

// First in main(). Of standard input, output and error, those that the caller closed become /dev/null: a file opened
// later would take their number, and what is printed would go there.
void open_closed_streams();

// "TEXT\n" on standard error. Where that is closed or full nothing happens: the exit code still says what it has to.
void tell(std::string_view text) noexcept;

// The text on standard output, at once. A failure is remembered, for exit_code().
void print(std::string_view text) noexcept;

// Last in main(): `code`, or 1 in place of 0 where standard output did not take everything, which `tell` then says.
int exit_code(int code) noexcept;

}  // namespace tools
