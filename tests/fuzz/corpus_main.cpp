// Gives a target every file of a corpus, and every file cut off at some places:
//   TARGET FOLDER
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  std::size_t inputs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1])) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string input{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    const std::size_t stride = input.size() / 64 + 1;
    for (std::size_t cut = 0; cut < input.size() + stride; cut += stride, ++inputs) {
      LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.data()),
                             input.size() - std::min(cut, input.size()));
    }
  }
  std::printf("%zu inputs\n", inputs);
  return inputs == 0 ? 1 : 0;
}
