// GCC hides the instances of a function template in a shared library, whatever the template's header says of its
// visibility: instances that users call say it again.
#pragma once

#define TESSERA_EXPORTED __attribute__((visibility("default")))
