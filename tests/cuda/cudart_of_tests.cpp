// The calls of CUDA's runtime that cudnn-frontend makes while it plans, answered as by an H100: for a machine without a
// device, whose own runtime fails each.
extern "C" {

int cudaGetDevice(int* device) { return *device = 0; }

int cudaDeviceGetAttribute(int* value, int attribute, int) {
  constexpr int multiprocessors = 16, major = 75, minor = 76;  // as in driver_types.h
  *value = attribute == multiprocessors ? 132 : attribute == major ? 9 : 0;
  return attribute == multiprocessors || attribute == major || attribute == minor ? 0 : 1;
}

const char* cudaGetErrorString(int) { return "a call that the tests' runtime does not answer"; }
}
