// Version of the product, also of the C++ interface under include/spindle.
#pragma once

#define SPINDLE_VERSION "0.1.0"
