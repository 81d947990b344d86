#pragma once
#include <gloo/declarations.hpp>
